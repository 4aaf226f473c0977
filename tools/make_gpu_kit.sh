#!/usr/bin/env bash
# Builds the folder that is copied to a machine with a GPU: the program, the tests that need a
# GPU, the end-to-end jobs, and gpu_acceptance, for one GPU generation, stripped. Usage: tools/make_gpu_kit.sh [ARCHITECTURES] [FOLDER]
#   ARCHITECTURES  default 90a-real (H100, H200, without PTX)
#   FOLDER         default build/gpu_kit/install; must not exist, or be an older kit
# FOLDER.tar.gz is what travels, half as large. Then, there: tar xzf FOLDER.tar.gz; FOLDER/gpu_acceptance A0 --results RESULTS
# [--models models/shipped]; then A1, A4; then A2, A3, A5; then A6 (bench/README.md)
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=${1:-90a-real}
folder=${2:-$PWD/build/gpu_kit/install}
limit_mib=26  # with the checkout's files, what can be carried to a lent machine

if [ -e "$folder" ] && [ ! -x "$folder/gpu_acceptance" ]; then
  echo "triphase: error: $folder exists and is no GPU kit" >&2
  exit 2
fi
# Kernels shrink to a tenth; loading them takes a little longer. CUDA before 12.8 does not know it.
if ! nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"); then
  echo "triphase: error: no nvcc in PATH or CUDA_HOME; a GPU kit needs the CUDA toolkit" >&2
  exit 1
fi
flags=""
if grep -q -e '--compress-mode' <<<"$("$nvcc" --help)"; then flags="--compress-mode=size"; fi
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
cmake --preset portable -B build/gpu_kit -DTRIPHASE_CUDA=ON -DTRIPHASE_GPU_KIT=ON \
  -DTRIPHASE_CUDA_ARCHS="$architectures" -DCMAKE_CUDA_FLAGS="$flags" -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared \
  -DCMAKE_EXE_LINKER_FLAGS="-Wl,--gc-sections -Wl,-z,pack-relative-relocs" -DCMAKE_INSTALL_PREFIX="$folder" >/dev/null
mapfile -t tests < <(sed -n 's/^gpu://p' build/gpu_kit/bin/gpu_tests.txt)
nice -n 3 cmake --build build/gpu_kit -j "$(nproc)" --target triphase "${tests[@]}"
rm -rf "$folder"
cmake --install build/gpu_kit --strip >/dev/null
rm -f "$folder.tar.gz"
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
size_mib=$(du -m "$folder.tar.gz" | cut -f1)
echo "$folder.tar.gz: $size_mib MiB, sm_$architectures"
if [ "$size_mib" -gt "$limit_mib" ]; then
  echo "triphase: error: the kit is larger than $limit_mib MiB" >&2
  exit 1
fi
