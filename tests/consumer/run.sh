#!/usr/bin/env bash
# usage: run.sh BUILD. Installs BUILD and uses it as a package; then uses the sources with FetchContent.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
PATH="$here/../../.venv/bin:$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

torch=$(sed -n 's/^CLEAVE_TORCH_ROOT:PATH=//p' "$build/CMakeCache.txt")
common=(-G Ninja -DCMAKE_BUILD_TYPE=Release)
command -v ccache >/dev/null && common+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

try() {  # NAME CMAKE-ARGUMENTS...
  local name=$1
  shift
  cmake -S "$here" -B "$work/$name" "${common[@]}" "$@"
  cmake --build "$work/$name" -j "$("$here/../../tools/setup.sh" jobs)" --target consumer
  "$work/$name/consumer"
  "$work/prefix/bin/cleave-run" -n 2 "$work/$name/consumer"
}

cmake --install "$build" --prefix "$work/prefix" > /dev/null
try package -DCMAKE_PREFIX_PATH="$work/prefix" ${torch:+-DCLEAVE_TORCH_ROOT="$torch"}
try fetch -DUSE_FETCH_CONTENT=ON ${torch:+-DCLEAVE_TORCH_ROOT="$torch"}
echo "consumer: find_package and FetchContent both work"
