#!/usr/bin/env bash
# clang-format, a short clang-tidy list (.clang-tidy) and shellcheck over the repository.
# Usage: tools/check_style.sh [--fix | --seconds N]     needs a configured release build for clang-tidy,
# which begins no file after N seconds
set -euo pipefail
cd "$(dirname "$0")/.."

case "$#:${1:-}" in
  0: | 1:--fix | 2:--seconds) ;;
  *) echo "usage: tools/check_style.sh [--fix | --seconds N]" >&2; exit 2 ;;
esac

mapfile -t sources < <(git ls-files '*.cpp' '*.h' '*.inl' '*.cu' '*.cuh')
if [ "${1:-}" = "--fix" ]; then
  clang-format-14 -i "${sources[@]}"
else
  clang-format-14 --dry-run --Werror "${sources[@]}"
fi

mapfile -t scripts < <(git ls-files '*.sh' '.ci/run')
shellcheck "${scripts[@]}"

if [ "${1:-}" = "--seconds" ]; then python3 tools/check_tidy.py --seconds "$2"; else python3 tools/check_tidy.py; fi
echo "style: ok"
