#!/usr/bin/env bash
# Configures and builds one preset, whole or some targets of it:
# [TRIPHASE_CUDA=ON|OFF] tools/build.sh [release|debug|asan|portable [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

# TRIPHASE_CUDA=ON|OFF decides; otherwise CUDA is built where both nvcc and a GPU are, and a folder
# that was configured by hand keeps its choice.
nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || true)
case "${TRIPHASE_CUDA:-auto}" in
  ON) cuda=(-DTRIPHASE_CUDA=ON) ;;
  OFF) cuda=(-DTRIPHASE_CUDA=OFF) ;;
  auto)
    if [ -n "$nvcc" ] && nvidia-smi -L >/dev/null 2>&1; then cuda=(-DTRIPHASE_CUDA=ON); else cuda=(); fi ;;
  *) echo "TRIPHASE_CUDA is '$TRIPHASE_CUDA', expected ON, OFF or auto" >&2; exit 2 ;;
esac
# Worktrees of one repository share what the compiler cache holds.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
cmake --preset "$preset" "${cuda[@]}" >"/tmp/triphase-configure.$$" 2>&1 || {
  cat "/tmp/triphase-configure.$$" >&2
  rm -f "/tmp/triphase-configure.$$"
  exit 1
}
rm -f "/tmp/triphase-configure.$$"
if grep -q '^TRIPHASE_CUDA:BOOL=ON' "build/$preset/CMakeCache.txt"; then
  echo "Building with the CUDA backend ($nvcc)."
elif [ -n "$nvcc" ]; then
  echo "Building for the CPU only; TRIPHASE_CUDA=ON tools/build.sh adds the CUDA backend."
else
  echo "No CUDA compiler found: building for the CPU only."
fi
cmake --build --preset "$preset" ${2:+--target "${@:2}"}
