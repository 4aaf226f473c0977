#!/usr/bin/env python3
"""Speed of two builds in paired turns: old, new, old, new, cell by cell, round after round.

    tools/lab/paired_speed.py OLD_DIR NEW_DIR [--rounds 10] [--quick] [--output FILE]

A DIR is a checkout with build/release, or a build folder; both need triphase_decode_bench and triphase_sparse_cpu.
The cells are our side of those of bench/vs_llama_cpp.py --quick with fewer steps (decode of every cell, prefill of
all but TinyLlama's, which takes longest), and single attention steps of triphase_sparse_cpu. About 20 minutes for
10 rounds on 2 idle cores and 6 GB of memory; --quick takes the small shape and short contexts, about 3 minutes.

A round's value of a cell is the median of that process's samples. Printed is, for each cell, new speed over old:
the ratio of the medians over the rounds with a 95 % bootstrap interval over rounds; then the geometric mean.

Exit 0; 1: the mean is below 0.97, or a cell's upper bound is; 2: misuse; 3: a program failed. Standard library only.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOWEST = 0.97
RESAMPLES = 4000
STEPS, REPEATS = 4, 3

# Shape, context and batch of bench/vs_llama_cpp.py --quick, and whether prefill is timed too.
DECODE = (
    ("llama-110m", 512, 1, True), ("llama-110m", 512, 16, False),
    ("tinyllama-1.1b", 512, 1, False), ("tinyllama-1.1b", 512, 16, False),
    ("llama-2-7b-4layers", 512, 1, True), ("llama-2-7b-4layers", 512, 16, False),
    ("llama-110m", 4096, 1, True), ("llama-110m", 4096, 16, False),
)  # fmt: skip
SPARSE = (("4096,16384", "1"),)  # contexts, batches
QUICK_DECODE = DECODE[:2]
QUICK_SPARSE = (("4096", "1"),)


def programs_of(folder):
    for place in (pathlib.Path(folder) / "build/release/bin", pathlib.Path(folder) / "bin"):
        if (place / "triphase_decode_bench").exists() and (place / "triphase_sparse_cpu").exists():
            return place
    raise SystemExit(f"paired_speed: {folder}: no bin with triphase_decode_bench and triphase_sparse_cpu")


def output_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"paired_speed: {command[0]} ended with {done.returncode}: {last}", file=sys.stderr)
        raise SystemExit(3)
    return done.stdout


def decode(programs, threads, shape, context, batch, prefill):
    """{cell: speed} of one process of triphase_decode_bench."""
    report = json.loads(output_of([
        programs / "triphase_decode_bench", "--model", ROOT / "bench/shapes" / shape / "config.json",
        "--threads", threads, "--batch", batch,  # weights and KV are FP16 by default
        # So that the last timed step attends `context` tokens; one step is warm-up.
        "--context", context - STEPS * REPEATS - 1, "--steps", STEPS, "--repeats", REPEATS,
        "--prefill-repeats", 1 if prefill else 0,
    ]).splitlines()[-1])  # fmt: skip
    cells = {f"decode {shape} {context} batch {batch}": statistics.median(report["samples"])}
    if prefill:
        cells[f"prefill {shape} {context}"] = statistics.median(report["prefill_samples"])
    return cells


def sparse(programs, threads, contexts, batches):
    """{cell: speed} of one process of triphase_sparse_cpu."""
    rows = json.loads(output_of([
        programs / "triphase_sparse_cpu", "--contexts", contexts, "--batches", batches,
        "--threads", threads, "--rounds", 5, "--format", "json",
    ]))  # fmt: skip
    return {f"attention {row['method']} {row['kv_dtype']} {row['context']} batch {row['batch']}": 1e6 / row["us"]
            for row in rows}


def measure(arguments):
    """{cell: {build: [speed of each round]}}"""
    builds = {"old": programs_of(arguments.old), "new": programs_of(arguments.new)}
    runs = [(decode, cell) for cell in (QUICK_DECODE if arguments.quick else DECODE)]
    runs += [(sparse, cell) for cell in (QUICK_SPARSE if arguments.quick else SPARSE)]
    speeds = collections.defaultdict(lambda: {"old": [], "new": []})
    for turn in range(arguments.rounds):
        for run, cell in runs:
            for build, programs in builds.items():
                for name, speed in run(programs, arguments.threads, *cell).items():
                    speeds[name][build].append(speed)
        load = os.getloadavg()[0]
        print(f"round {turn + 1} of {arguments.rounds}, load average {load:.2f}", file=sys.stderr, flush=True)
    return speeds


def interval(old, new, draws):
    """95 % of the ratios of medians over rounds that are drawn again."""
    ratios = []
    for _ in range(RESAMPLES):
        rounds = draws.choices(range(len(old)), k=len(old))
        ratios.append(statistics.median(new[at] for at in rounds) / statistics.median(old[at] for at in rounds))
    ratios.sort()
    return ratios[round(0.025 * RESAMPLES)], ratios[round(0.975 * RESAMPLES) - 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD_DIR", help="the build before")
    parser.add_argument("new", metavar="NEW_DIR", help="the build after")
    parser.add_argument("--rounds", type=int, help="turns of each build in every cell (default 10; --quick: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all usable cores")
    parser.add_argument("--quick", action="store_true", help="the small shape and short contexts only")
    parser.add_argument("--output", metavar="FILE", help="write every round's speeds there, as JSON")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (5 if arguments.quick else 10)
    speeds = measure(arguments)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(speeds, indent=1) + "\n")
    draws = random.Random(1)
    ratios, slow = [], []
    print("| cell | old, per second | new | new / old | 95 % interval |\n|---|---|---|---|---|")
    for cell, speed in speeds.items():
        old, new = statistics.median(speed["old"]), statistics.median(speed["new"])
        low, high = interval(speed["old"], speed["new"], draws)
        ratios.append(new / old)
        if high < LOWEST:
            slow.append(cell)
        print(f"| {cell} | {old:.1f} | {new:.1f} | {new / old:.3f} | {low:.3f} to {high:.3f} |")
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\nGeometric mean of {len(ratios)} cells, {arguments.rounds} rounds: {mean:.3f} (at least {LOWEST} wanted)")
    for cell in slow:
        print(f"slower: {cell}")
    return 1 if mean < LOWEST or slow else 0


if __name__ == "__main__":
    sys.exit(main())
