#!/usr/bin/env bash
# clang-format, a short clang-tidy list (.clang-tidy) and shellcheck over the repository.
# Usage: tools/check_style.sh [--fix]     needs a configured release build for clang-tidy
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 1 ] || { [ $# -eq 1 ] && [ "$1" != "--fix" ]; }; then
  echo "usage: tools/check_style.sh [--fix]" >&2
  exit 2
fi

mapfile -t sources < <(git ls-files '*.cpp' '*.h' '*.inl' '*.cu' '*.cuh')
if [ "${1:-}" = "--fix" ]; then
  clang-format-14 -i "${sources[@]}"
else
  clang-format-14 --dry-run --Werror "${sources[@]}"
fi

mapfile -t scripts < <(git ls-files '*.sh' '.ci/run')
shellcheck "${scripts[@]}"

python3 tools/check_tidy.py
echo "style: ok"
