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

# Only files the release build compiles have a compile command.
python3 - <<'PY' >/tmp/triphase-tidy-files.$$
import json, os, subprocess
tracked = set(subprocess.check_output(["git", "ls-files", "*.cpp"], text=True).split())
for entry in json.load(open("build/release/compile_commands.json")):
    path = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
    if path in tracked and not path.startswith("tests/"):
        print(path)
PY
sort -u "/tmp/triphase-tidy-files.$$" | xargs -P "$(nproc)" -n 4 clang-tidy-14 -p build/release --quiet \
  --extra-arg=-Wno-unknown-warning-option 2>/tmp/triphase-tidy.$$ || {
  grep -v 'warnings generated' "/tmp/triphase-tidy.$$" >&2 || true
  exit 1
}
rm -f "/tmp/triphase-tidy-files.$$" "/tmp/triphase-tidy.$$"
echo "style: ok"
