#!/usr/bin/env bash
# Makes the Python package with the program inside, for machines with this one's glibc or a newer one and any
# processor: the kernels choose their instructions when they run. Usage: [TRIPHASE_CUDA=ON] tools/make_wheel.sh
# [FOLDER]    default build/wheel. Then: pip install build/wheel/triphase-*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
TRIPHASE_CUDA="${TRIPHASE_CUDA:-OFF}" tools/build.sh portable triphase
python3 tools/python/build_wheel.py build/portable/bin/triphase "${1:-build/wheel}"
