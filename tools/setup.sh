#!/usr/bin/env bash
# Makes a bare Debian 12 ready to build: apt packages and a .venv with LibTorch, cmake and ninja.
# Does only what is missing. `setup.sh jobs` prints how many compilers fit into memory and cores.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ git make ccache python3 python3-venv libabsl-dev libgloo-dev libbenchmark-dev libgtest-dev
          clang-format)

jobs() {
  local memory cores
  memory=$(awk '/MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
  cores=$(nproc)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done
}

install_packages() {
  local missing=() root=()
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "setup: please install: ${missing[*]} (known to work: Debian 12)" >&2
    exit 1
  fi
  [[ $(id -u) == 0 ]] || root=(sudo)
  echo "setup: apt-get install ${missing[*]}"
  "${root[@]}" apt-get update -q
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
}

install_venv() {
  local wanted=requirements.txt stamp=.venv/setup.stamp key
  [[ -z ${CLEAVE_TORCH_ROOT:-} ]] || wanted=requirements-build.txt
  key=$(cat "$wanted" requirements-build.txt tools/setup.sh | sha256sum)
  # A full .venv serves a build with another LibTorch as well.
  if [[ -n ${CLEAVE_TORCH_ROOT:-} && -x .venv/bin/cmake && -x .venv/bin/ninja ]]; then return 0; fi
  [[ $(cat $stamp 2>/dev/null) != "$key" ]] || return 0
  echo "setup: .venv from $wanted (torch with its libraries is about 5 GB)"
  [[ -x .venv/bin/python ]] || python3 -m venv .venv
  .venv/bin/python -m pip install --disable-pip-version-check -r "$wanted"
  echo "$key" > $stamp
}

case ${1:-} in
  jobs) jobs ;;
  "") install_packages; install_venv ;;
  *) echo "usage: setup.sh [jobs]" >&2; exit 2 ;;
esac
