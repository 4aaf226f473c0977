#!/usr/bin/env bash
# Sets up, builds and passes all tests. Usage: tools/test.sh [--full]
#   default  release build, all tests, include rules
#   --full   also: formatting, clang-tidy, shellcheck, and unit tests and hostile inputs under ASan and UBSan
# CI (CI=true) runs --full.
set -euo pipefail
cd "$(dirname "$0")/.."

full=no
if [ "${1:-}" = "--full" ] || [ "${CI:-}" = "true" ]; then full=yes; fi

# Fails too where a test skips itself that tests/expected_skips.txt does not name.
run_tests() {
  ctest --preset "$1" -j "$(nproc)" --output-junit "$PWD/build/$1/tests.xml" \
    --test-output-size-passed 1000000 "${@:2}"
  python3 tests/check_skips.py "build/$1/tests.xml"
}
step() { echo; echo "== $* ($(date +%H:%M:%S))"; }

if [ "$full" = yes ]; then tools/setup.sh --checks; else tools/setup.sh; fi
# CUDA compiles wherever nvcc is; tests that need a GPU skip themselves without one.
cuda=OFF
if command -v nvcc >/dev/null 2>&1 || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then cuda=ON; fi
step "build (release, CUDA $cuda)"
TRIPHASE_CUDA=$cuda tools/build.sh release
if [ "$full" = yes ]; then
  step "style"
  tools/check_style.sh
  step "build (address and undefined-behaviour sanitizers)"
  TRIPHASE_CUDA=OFF tools/build.sh asan
  step "tests under sanitizers"
  run_tests asan -L unit
fi
step "tests (release)"
run_tests release
