#!/usr/bin/env bash
# Builds with CLEAVE_CUDA=ON against the LibTorch of this machine (2.11 or newer) and runs the tests
# that carry the ctest label "gpu", one rank for each GPU. Needs an NVIDIA GPU and the CUDA toolkit.
# Ends after LIMIT seconds (default 290) whatever happens: 0 passed, 1 failed, 2 something is missing, 124 out of time.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${CLEAVE_GPU_CHECK:-} ]]; then
  CLEAVE_GPU_CHECK=1 exec timeout -k 5 "${LIMIT:-290}" "$0" "$@"
fi

step() { echo "gpu check [${SECONDS}s]: $*"; }
missing() { step "$*" >&2; exit 2; }

find_torch() {
  local python
  for python in .venv/bin/python python3; do
    "$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' \
      2>/dev/null && return
  done
  return 1
}

[[ -x .venv/bin/cmake ]] && PATH="$PWD/.venv/bin:$PATH"
gpus=$(nvidia-smi -L | grep -c '^GPU') || missing "no NVIDIA GPU"
command -v cmake >/dev/null || missing "no cmake"
torch=${CLEAVE_TORCH_ROOT:-$(find_torch)} || missing "no LibTorch"
step "LibTorch in $torch"

build=${BUILD:-build/gpu}
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCLEAVE_CUDA=ON \
  -DCLEAVE_TORCH_ROOT="$torch" -DCLEAVE_BUILD_BENCHMARKS=OFF -DCLEAVE_BUILD_EXAMPLES=OFF \
  -DCLEAVE_GPU_RANKS="$gpus"
cmake --build "$build" -j "$(tools/setup.sh jobs)" --target gpu_test cleave_run
step "built"
ctest --test-dir "$build" -L gpu --output-on-failure --no-tests=error -j 1
step "passed"
