#!/usr/bin/env python3
"""Jobs of every method x policy x KV type x heads on a GPU: the answers of all KV on the device.

    gpu_matrix.py TRIPHASE_EMULATED TRIPHASE [--results FILE] [--seconds N] [--parallel N]
    gpu_matrix.py TRIPHASE TRIPHASE --device cuda:0 ...

FILE gets a JSON line for each job, and what it has of the same program is not run again. Exit 75: time is up, call
again. Standard library only.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import itertools
import json
import pathlib
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import gpu_jobs  # noqa: E402
from gpu_jobs import Answers, ARGUMENTS, DEVICE, Jobs, METHODS, ON_CPU, OTHERS, POLICIES  # noqa: E402


def parse_own():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=pathlib.Path, help="JSON lines")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no job begins later")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at once")
    return parser.parse_args(OTHERS)


OWN = parse_own()


class Matrix:
    """Every method under every policy, KV type and kind of heads, with what earlier calls have found."""

    def __init__(self):
        self.deadline = time.monotonic() + OWN.seconds
        made_by = (ARGUMENTS.program, __file__, gpu_jobs.__file__)
        digests = [hashlib.sha256(pathlib.Path(path).read_bytes()).digest() for path in made_by]
        self.mark = hashlib.sha256(b"".join(digests)).hexdigest()[:16]
        self.found = {}  # by cell
        if OWN.results and OWN.results.is_file():
            for line in OWN.results.read_text(errors="replace").splitlines():
                try:
                    result = json.loads(line)
                except ValueError:
                    continue  # the end of a call that was killed
                if result["program"] == self.mark:
                    self.found[result["cell"]] = result
            with OWN.results.open("a") as out:
                out.write("\n")

    @staticmethod
    def groups():
        """What shares a reference: heads, KV type, method, and its cells with their policies."""
        number = 0
        for kv_heads, kv, method in itertools.product((2, 4), ("fp16", "bf16", "int8"), ("dense", *METHODS)):
            cells = []
            for name, policy in POLICIES.items():
                if name in ON_CPU and (kv == "int8" or method != "dense"):
                    continue
                # Little enough that triphase's KV goes to the host, and that every request fits.
                room = 260 + 340 * (kv == "int8") + 640 * (method == "sparq") + 100 * method.startswith("squeezed")
                room = f"{room * kv_heads // 2}KiB"
                number += 1
                cells.append((f"heads {kv_heads}, {kv}, {method}, {name}", number,
                              [room if option == "260KiB" else option for option in policy]))  # fmt: skip
            yield kv_heads, kv, method, cells

    def note(self, cell, verdict, seconds=0.0, moved=0):
        result = {"cell": cell, "verdict": verdict, "seconds": round(seconds, 2), "moved_bytes": moved,
                  "device": DEVICE, "program": self.mark}  # fmt: skip
        self.found[cell] = result
        if verdict not in ("same", "close"):
            print(f"{cell}: {verdict}", flush=True)
        if OWN.results:
            with OWN.results.open("a") as out:
                out.write(json.dumps(result) + "\n")

    def run_group(self, folder, group):
        kv_heads, kv, method, cells = group
        left = [cell for cell in cells if cell[0] not in self.found]
        if not left or time.monotonic() > self.deadline:
            return
        jobs = Jobs(folder)
        try:
            common = ["--overwrite", "--kv-dtype", kv, "--kv-block", "32",
                      *jobs.attention(method, f"heads{kv_heads}")]  # fmt: skip
            _, expected = jobs.run("reference", "--policy", "device-only", *common, kv_heads=kv_heads, tokens=8)
        except Exception as error:
            for cell, _, _ in left:
                self.note(cell, f"reference: {error}")
            return
        for cell, number, policy in left:
            if time.monotonic() > self.deadline:
                return
            started, moved = time.monotonic(), 0
            try:
                summary, answers = jobs.run("job", *policy, *common, kv_heads=kv_heads, tokens=8,
                                            machine=f"schedule={number % 7}")
                moved, verdict = summary["moved_bytes"]["to_device"], Answers.compare(answers, expected)
            except Exception as error:
                verdict = str(error)
            self.note(cell, verdict, time.monotonic() - started, moved)

    def run(self):
        groups = list(self.groups())
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(OWN.parallel) as pool:
            folders = [pathlib.Path(folder) / str(number) for number in range(len(groups))]
            for path in folders:
                path.mkdir()
            list(pool.map(self.run_group, folders, groups))
        cells = [cell for *_, cells in groups for cell, _, _ in cells]
        results = [self.found[cell] for cell in cells if cell in self.found]
        verdicts = collections.Counter(result["verdict"] for result in results)
        wrong = len(results) - verdicts["same"] - verdicts["close"]
        moved = sum(result["moved_bytes"] > 0 for result in results)
        print(f"matrix: {len(results)} of {len(cells)} jobs, {moved} of them over the link, {verdicts['same']} the same, "
              f"{verdicts['close']} but for close calls, {wrong} wrong")
        if len(results) < len(cells):
            return 75
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(Matrix().run())
