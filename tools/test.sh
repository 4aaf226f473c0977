#!/usr/bin/env bash
# Sets up, builds and passes all tests. Usage: tools/test.sh [--full]
#   default  release build, all tests, include rules
#   --full   also: formatting, clang-tidy, shellcheck, and unit tests and hostile inputs under ASan and UBSan
# CI (CI=true) runs --full for about an hour: where everything must be compiled anew, clang-tidy reads the files that
# changed last alone, and the sanitizers' build may be left out.
set -euo pipefail
cd "$(dirname "$0")/.."

full=no
case "$#:${1:-}" in
  0:) ;;
  1:--full) full=yes ;;
  *) echo "usage: tools/test.sh [--full]" >&2; exit 2 ;;
esac
if [ "${CI:-}" = "true" ]; then full=yes; fi

# Seconds that are left of so many minutes; plenty where nobody waits.
left_of() {
  if [ "${CI:-}" = "true" ]; then echo $((SECONDS < $1 * 60 ? $1 * 60 - SECONDS : 0)); else echo 86400; fi
}
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
step "tests (release)"
run_tests release
[ "$full" = yes ] || exit 0

step "style"
tools/check_style.sh --seconds "$(left_of 45)"
step "build (address and undefined-behaviour sanitizers)"
left=$(left_of 55)
built=124  # as timeout says it
if [ "$left" -gt 0 ]; then
  built=0
  TRIPHASE_CUDA=OFF timeout "$left" tools/build.sh asan || built=$?
fi
if [ "$built" = 124 ]; then
  echo "The time is up: no tests under sanitizers. tools/test.sh --full has them."
  exit 0
fi
[ "$built" = 0 ] || exit "$built"
step "tests under sanitizers"
run_tests asan -L unit
