#!/usr/bin/env bash
# Builds the folder that is copied to a machine with a GPU: the program, its GPU and emulated tests,
# and gpu_acceptance, for one GPU generation, stripped. Usage: tools/make_gpu_kit.sh [ARCHITECTURES] [FOLDER]
#   ARCHITECTURES  default 90a-real (H100, H200, without PTX)
#   FOLDER         default build/gpu_kit/install; must not exist, or be an older kit
# Then, there: FOLDER/gpu_acceptance
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=${1:-90a-real}
folder=${2:-$PWD/build/gpu_kit/install}
limit_mib=30

if [ -e "$folder" ] && [ ! -x "$folder/gpu_acceptance" ]; then
  echo "triphase: error: $folder exists and is no GPU kit" >&2
  exit 2
fi
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
cmake --preset portable -B build/gpu_kit -DTRIPHASE_CUDA=ON -DTRIPHASE_GPU_KIT=ON \
  -DTRIPHASE_CUDA_ARCHS="$architectures" -DCMAKE_INSTALL_PREFIX="$folder" >/dev/null
mapfile -t tests < <(sed -n 's/^[a-z]*://p' build/gpu_kit/bin/gpu_tests.txt)
nice -n 3 cmake --build build/gpu_kit -j "$(nproc)" --target triphase "${tests[@]}"
rm -rf "$folder"
cmake --install build/gpu_kit --strip >/dev/null
size_mib=$(du -sm "$folder" | cut -f1)
echo "$folder: $size_mib MiB, sm_$architectures"
if [ "$size_mib" -gt "$limit_mib" ]; then
  echo "triphase: error: the kit is larger than $limit_mib MiB" >&2
  exit 1
fi
