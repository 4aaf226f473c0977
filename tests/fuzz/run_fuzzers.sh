#!/bin/sh
# Builds the fuzz targets with clang, makes seeds and runs each target for SECONDS.
#
#   tests/fuzz/run_fuzzers.sh SECONDS [TARGET...]
#
# Environment: BUILD (default build/fuzz) keeps the corpora and the execution counts between runs, so
# that a campaign may be spread over many runs; MAX_LEN (default 8192) bounds the inputs in bytes;
# JOBS is for building. Crashing inputs are left in BUILD/findings. Exits 1 when there is a finding.
set -eu

cd "$(dirname "$0")/../.."
seconds=${1:?usage: tests/fuzz/run_fuzzers.sh SECONDS [TARGET...]}
shift
build=${BUILD:-build/fuzz}
jobs=${JOBS:-$(nproc)}

if [ ! -f "$build/build.ninja" ]; then
  cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=clang++-14 \
    -DTRIPHASE_FUZZ=ON > /dev/null
fi
ninja -C "$build" -j "$jobs" fuzzers
for script in tests/fuzz/make_*seeds.py; do
  python3 "$script" "$build/seeds"
done

targets=$*
if [ -z "$targets" ]; then
  targets=$(find "$build/bin" -name 'fuzz_*' -type f | sed 's|.*/||' | sort)
fi
counts=$build/executions.txt
mkdir -p "$build/findings"
touch "$counts"
status=0
for target in $targets; do
  mkdir -p "$build/corpus/$target" "$build/seeds/$target"
  set -- -max_total_time="$seconds" -max_len="${MAX_LEN:-8192}" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$target-"
  if [ -f "$build/seeds/$target.dict" ]; then
    set -- "$@" "-dict=$build/seeds/$target.dict"
  fi
  log=$build/$target.log
  if ! "$build/bin/$target" "$@" "$build/corpus/$target" "$build/seeds/$target" > "$log" 2>&1; then
    status=1
    echo "$target: FINDING, see $log and $build/findings"
    grep -E 'ERROR|SUMMARY|runtime error' "$log" | head -5 || true
  fi
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  echo "$target ${executions:-0}" >> "$counts"
done
awk '{ sum[$1] += $2 } END { for (t in sum) printf "%-24s %12d executions in all\n", t, sum[t] }' "$counts" | sort
exit $status
