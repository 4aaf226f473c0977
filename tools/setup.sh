#!/usr/bin/env bash
# Installs what building and testing needs from Debian's packages. Without root it changes nothing
# and prints the one command to run. Usage: tools/setup.sh [--checks]
#   --checks  also the tools of the style checks and fuzzers (clang-format, clang-tidy, libFuzzer), and
#             where nvcc is and pip, the disassembler that the check of the kernels' hot loops reads with
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config git ca-certificates python3 python3-jinja2 python3-venv ccache
  patchelf coinor-libclp-dev libboost-program-options-dev libfmt-dev libgtest-dev libgmock-dev libhwy-dev
  libpcre2-dev libsentencepiece-dev libutf8proc-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev)
if [ "${1:-}" = "--checks" ]; then
  packages+=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev shellcheck)
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "triphase: error: no apt-get here, expected Debian 12: install what its packages hold," \
    "${packages[*]}, then run tools/build.sh" >&2
  exit 5
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done

# Two programs of the CUDA toolkit that small installations lack; without them one check is left out.
fetch_disassembler() {
  local nvcc folder
  nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc") || return 0
  [ -x "$(dirname "$(readlink -f "$nvcc")")/nvdisasm" ] && return 0
  folder=$(cd "$(dirname "$0")/.." && pwd)/build/disassembler
  [ -d "$folder/nvidia" ] && return 0
  python3 -m pip --version >/dev/null 2>&1 || return 0
  echo "Installing from PyPI: nvdisasm and cuobjdump"
  python3 -m pip install --quiet --no-deps --disable-pip-version-check --target "$folder" \
    nvidia-cuda-nvdisasm==13.2.51 nvidia-cuda-cuobjdump==13.2.51 2>/dev/null ||
    echo "triphase: warning: they cannot be installed: the kernels' hot loops are not checked" >&2
}
if [ "${1:-}" = "--checks" ]; then fetch_disassembler; fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "triphase: error: Debian packages are missing, install them and run this again:" \
    "sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 5
fi
echo "Installing from Debian: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
