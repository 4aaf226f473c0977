#!/usr/bin/env python3
"""Memory and speed of a job of very many prompts: the prompt file is streamed, not held.

Runs the same random-weight model over a small and a large file of short prompts, and prints the peak
memory and the lines per second of both.  Exits with 1 where the large job's peak is more than
--slack above the small one's, or a record is missing.

    bench/large_job.py                   10,000 and 1,000,000 lines
    bench/large_job.py --large 100000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_prompts(path: Path, lines: int) -> None:
    """Three token ids a line; no two neighbours alike."""
    with path.open("w") as file:
        for line in range(lines):
            file.write(f"[{3 + line % 500}, {3 + line // 500 % 500}, {3 + line // 250000}]\n")


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def run_job(program: Path, folder: Path, lines: int) -> tuple[int, float]:
    """Peak resident bytes and seconds of a job of so many lines."""
    prompts, output = folder / f"prompts-{lines}.jsonl", folder / f"out-{lines}.jsonl"
    write_prompts(prompts, lines)
    command = [
        str(program), "run", "--model", str(ROOT / "bench/shapes/tiny-test"), "--random-weights",
        "--prompts", str(prompts), "--input-format", "ids", "--output", str(output),
        "--max-tokens", "1", "--batch-size", "64", "--max-context", "64", "--ignore-eos",
        "--device-memory", "64MiB", "--host-memory", "64MiB", "--threads", "1", "--progress", "off",
    ]  # fmt: skip
    started = time.monotonic()
    child = subprocess.Popen(command, stderr=subprocess.PIPE)
    errors = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - started
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)}\n{errors}")
    if (records := count_lines(output)) != lines:
        sys.exit(f"{output}: {records} records, expected {lines}")
    return usage.ru_maxrss * 1024, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--slack", type=int, default=64, help="MiB")
    arguments = parser.parse_args()
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for lines in (arguments.small, arguments.large):
            peak, seconds = run_job(arguments.build / "bin/triphase", Path(folder), lines)
            peaks.append(peak)
            print(
                f"{lines:>9} lines: peak {peak / 2**20:.1f} MiB, {seconds:.1f} s, "
                f"{lines / seconds:.0f} lines/s",
                flush=True,
            )
    if peaks[1] > peaks[0] + arguments.slack * 2**20:
        sys.exit(f"the large job took over {arguments.slack} MiB more than the small one")


if __name__ == "__main__":
    main()
