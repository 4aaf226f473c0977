#!/usr/bin/env bash
# The main job from nothing: installs what is missing, builds the program alone, completes the shipped prompts with
# the shipped model, and says what to type next. Usage: tools/demo.sh [extra options for `triphase run`]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
# The CUDA backend takes minutes to build: only where there is a GPU to use it.
if nvidia-smi -L >/dev/null 2>&1; then cuda=auto; else cuda=OFF; fi
TRIPHASE_CUDA=$cuda tools/build.sh release triphase
output=$(mktemp -d)/completions.jsonl
echo
echo "triphase run --model models/shipped/triphase-mha --prompts models/shipped/prompts.jsonl --output $output $*"
build/release/bin/triphase run --model models/shipped/triphase-mha \
  --prompts models/shipped/prompts.jsonl --output "$output" "$@"
echo
python3 tools/show_completions.py models/shipped/prompts.jsonl "$output"
cat <<EOF

What to type next, for
  your model and prompts   build/release/bin/triphase run --model DIR --prompts in.jsonl --output out.jsonl
  every option             build/release/bin/triphase run --help
  this machine             build/release/bin/triphase doctor
  Python                   tools/make_wheel.sh && pip install build/wheel/triphase-*.whl
  all tests                tools/test.sh
README.md says what the files hold.
EOF
