#!/usr/bin/env python3
"""Prefill and decode speed beside llama.cpp: same shapes, threads, types of weights and F16 KV, one run.

    pip install llama-cpp-python gguf numpy
    ninja -C build/release triphase triphase_decode_bench
    python3 bench/vs_llama_cpp.py --quick        about 8 minutes on an idle machine
    python3 bench/vs_llama_cpp.py                about 30 minutes

Writes bench/results/<cpu>/vs_llama_cpp.json with every sample, and vs_llama_cpp.md, the table; with
--weights bf16 vs_llama_cpp_bf16. What is measured and how is in bench/README.md; llama.cpp's side is
bench/llama_cpp_worker.py.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
SHAPES = ("llama-110m", "tinyllama-1.1b", "llama-2-7b-4layers")
TYPES = {"fp16": "F16", "bf16": "BF16"}  # of weights
LONG = 1024  # contexts beyond this are prefilled once, shorter ones three times
# Above this load average other work shares the cores, and both programs' numbers suffer unevenly.
BUSY = 0.5


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="long contexts on llama-110m only")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="folders of bench/shapes")
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 4096], help="tokens")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16], help="sequences")
    parser.add_argument("--weights", choices=list(TYPES), default="fp16", help="their type")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=8, help="decode steps per repeat")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats")
    parser.add_argument("--rounds", type=int, default=3,
                        help="times the two programs take turns within a cell")  # fmt: skip
    parser.add_argument("--minutes", type=float, help="start no cell later; default: 8 or 30")
    parser.add_argument("--build", default="build/release", help="our build folder")
    parser.add_argument("--work", help="folder that keeps the GGUF files for the next run")
    parser.add_argument("--output", help="result folder; default: bench/results/<cpu>")
    arguments = parser.parse_args()
    if min(arguments.contexts) <= arguments.steps * arguments.repeats + 1:
        parser.error("--contexts must exceed steps * repeats + 1")
    arguments.minutes = arguments.minutes or (8 if arguments.quick else 30)
    return arguments


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def run_lines(command, seconds):
    """Standard output lines of a finished command; a failure's reason instead of raising."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 60))
    except FileNotFoundError:
        return [], f"{pathlib.Path(command[0]).name} is not built"
    except subprocess.TimeoutExpired:
        return [], f"stopped after {max(seconds, 60):.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return lines, f"exit {done.returncode}: {last}"
    return lines, None


class Comparison:
    def __init__(self, arguments):
        self.arguments = arguments
        self.started = time.monotonic()
        self.build = pathlib.Path(arguments.build)
        # GGUF files of the shapes take up to 5 GB: kept only where the user names a folder.
        self.temporary = None if arguments.work else tempfile.TemporaryDirectory()
        self.work = pathlib.Path(arguments.work or self.temporary.name)
        self.work.mkdir(parents=True, exist_ok=True)
        self.bandwidths = []
        self.ops = None
        self.cells = []

    def seconds_left(self):
        return self.arguments.minutes * 60 - (time.monotonic() - self.started)

    def measure_bandwidth(self):
        """Adds one measurement of what this machine reads with these threads; the best counts."""
        # Every benchmark measures it first; this one takes no time beside it.
        command = [str(self.build / "bin/triphase"), "bench", "gemm", "--rows", "1", "--depth", "64", "--columns", "64",
                   "--samples", "5", "--seconds", "0.1s", "--threads", str(self.arguments.threads), "--format", "json"]
        lines, problem = run_lines(command, 60)
        if problem:
            print(f"no read bandwidth, so no bounds: {problem}", file=sys.stderr)
        else:
            self.bandwidths.append(1e9 * json.loads("\n".join(lines))[0]["read GB/s"])

    @property
    def bandwidth(self):
        return max(self.bandwidths, default=None)

    def filled(self, context):
        """Prompt tokens, so that the last timed step attends `context` tokens."""
        return context - self.arguments.steps * self.arguments.repeats - 1

    def run_llama_cpp(self, config, context):
        """{(flash attention, batch): record}, problem"""
        text = json.dumps([config, self.arguments.weights], sort_keys=True)
        job = {
            "config": config,
            "weights": self.arguments.weights,
            "gguf": str(self.work / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.gguf"),
            "threads": self.arguments.threads,
            "context": context,
            "batches": self.arguments.batches,
            "steps": self.arguments.steps,
            "repeats": self.arguments.repeats,
            "prefill_repeats": 3 if context <= LONG else 1,
        }
        path = self.work / "job.json"
        path.write_text(json.dumps(job))
        command = [sys.executable, str(BENCH / "llama_cpp_worker.py"), str(path)]
        lines, problem = run_lines(command, self.seconds_left() + 60)
        records = [json.loads(line) for line in lines]
        return {(r["flash_attention"], r["batch"]): r for r in records}, problem

    def run_ours(self, shape, context, batch, prefill_repeats):
        command = [
            self.build / "bin/triphase_decode_bench",
            "--model", BENCH / "shapes" / shape / "config.json",
            "--weights-dtype", self.arguments.weights, "--kv-dtype", "fp16",
            "--threads", self.arguments.threads, "--batch", batch,
            "--context", self.filled(context), "--steps", self.arguments.steps,
            "--repeats", self.arguments.repeats, "--prefill-repeats", prefill_repeats,
        ]  # fmt: skip
        lines, problem = run_lines([str(part) for part in command], self.seconds_left() + 60)
        return (json.loads(lines[-1]) if lines and not problem else None), problem

    def step_bytes(self, config, batch, context):
        """Bytes a decode step must read: every matrix once, every sequence's keys and values."""
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden, ffn = config["hidden_size"], config["intermediate_size"]
        head_dim, layers = hidden // heads, config["num_hidden_layers"]
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        weights = layers * (attention + 3 * hidden * ffn) + config["vocab_size"] * hidden
        # The timed steps attend from filled + 2 (one step was warm-up) to context tokens.
        tokens = (self.filled(context) + 2 + context) / 2
        kv = batch * tokens * layers * kv_heads * head_dim * 2
        return {"weights": 2 * weights, "kv": round(2 * kv)}

    def run_group(self, shape, context):
        """All batches of one shape and context: llama.cpp first, then ours."""
        config = json.loads((BENCH / "shapes" / shape / "config.json").read_text())
        if self.seconds_left() < 0:
            reason = f"the {self.arguments.minutes:g} minutes were used up"
            for batch in self.arguments.batches:
                self.cells.append(
                    {"shape": shape, "context": context, "batch": batch, "skipped": reason}
                )
            return
        load = os.getloadavg()[0]
        cells = {}
        our_prefill = []
        # The two programs take turns, because what a shared machine's memory gives changes from
        # minute to minute: a ratio is of neighbours in time.
        for turn in range(self.arguments.rounds):
            if turn > 0 and self.seconds_left() < 0:
                break
            self.measure_bandwidth()
            records, problem = self.run_llama_cpp(config, context)
            for batch in self.arguments.batches:
                # Prefill is one prompt on its own, so one process of the group measures it for all.
                repeats = 0 if our_prefill else (3 if context <= LONG else 1)
                ours, our_problem = self.run_ours(shape, context, batch, repeats)
                cell = cells.setdefault(
                    batch,
                    {"shape": shape, "context": context, "batch": batch, "load_before": load,
                     "rounds": [], "problems": []},
                )  # fmt: skip
                settings = [records[key] for key in ((False, batch), (True, batch)) if key in records]
                if ours:
                    our_prefill = our_prefill or ours["prefill_samples"]
                    self.ops = ours["ops"]
                if len(settings) == 2 and ours:
                    cell["rounds"].append({"llama_cpp": settings, "ours": ours["samples"]})
                else:
                    cell["problems"] += [p for p in (problem, our_problem) if p]
        for batch, cell in cells.items():
            cell["step_bytes"] = self.step_bytes(config, batch, context)
            if self.bandwidth:
                total = sum(cell["step_bytes"].values())
                cell["bound_tokens_per_second"] = batch * self.bandwidth / total
            if cell["rounds"]:
                self.join_rounds(cell, our_prefill)
            if not cell["problems"]:
                del cell["problems"]
            self.cells.append(cell)
            print(table_row(cell), flush=True)

    @staticmethod
    def join_rounds(cell, our_prefill):
        """Samples of all rounds together, and the ratio of decode speeds within each round."""
        settings = []
        for index in range(2):
            same = [turn["llama_cpp"][index] for turn in cell["rounds"]]
            joined = dict(same[0])
            for name in ("prefill_samples", "decode_samples"):
                joined[name] = [sample for record in same for sample in record[name]]
            settings.append(joined)
        cell["llama_cpp"] = settings
        samples = [sample for turn in cell["rounds"] for sample in turn["ours"]]
        cell["ours"] = {"prefill_samples": our_prefill, "decode_samples": samples}
        cell["decode_ratios"] = [
            statistics.median(turn["ours"])
            / max(statistics.median(record["decode_samples"]) for record in turn["llama_cpp"])
            for turn in cell["rounds"]
        ]
        if any(noisy(record["decode_samples"]) for record in settings + [cell["ours"]]):
            cell["problems"].append("noisy")


def noisy(samples):
    """Whether repeats differ so much that something else must have run."""
    middle = statistics.median(samples)
    return min(samples) < 0.8 * middle or max(samples) > 1.25 * middle


def best(records, name):
    """The better flash-attention setting's record, by its median."""
    return max(records, key=lambda record: statistics.median(record[name]))


def rate(samples):
    middle = statistics.median(samples)
    text = f"{middle:.1f}" if middle < 1000 else f"{middle:.0f}"
    if len(samples) > 1:
        text += f" ({min(samples) / middle:.2f}-{max(samples) / middle:.2f})"
    return text


HEADER = (
    "| shape | context | batch | llama.cpp prefill | ours | ratio | llama.cpp decode | ours | ratio "
    "| bound | ours / bound | note |\n|" + "---|" * 12
)


def table_row(cell):
    columns = [cell["shape"], str(cell["context"]), str(cell["batch"])]
    if "skipped" in cell:
        return "| " + " | ".join(columns + ["-"] * 8 + [f"skipped: {cell['skipped']}"]) + " |"
    for name in ("prefill_samples", "decode_samples"):
        theirs = best(cell["llama_cpp"], name) if "llama_cpp" in cell else None
        ours = cell.get("ours")
        columns.append(
            f"{rate(theirs[name])} {'FA' if theirs['flash_attention'] else 'no FA'}"
            if theirs
            else "-"
        )
        columns.append(rate(ours[name]) if ours else "-")
        if theirs and ours and name == "decode_samples":
            ratios = cell["decode_ratios"]
            columns.append(
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            )
        elif theirs and ours:
            columns.append(f"{statistics.median(ours[name]) / statistics.median(theirs[name]):.2f}")
        else:
            columns.append("-")
    bound = cell.get("bound_tokens_per_second")
    columns.append(f"{bound:.1f}" if bound else "-")
    if bound and "ours" in cell:
        columns.append(f"{statistics.median(cell['ours']['decode_samples']) / bound:.0%}")
    else:
        columns.append("-")
    columns.append("; ".join(cell.get("problems", [])))
    return "| " + " | ".join(columns) + " |"


def main():
    arguments = parse_arguments()
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"load average {load:.2f}: the machine is busy, these numbers are not to be trusted",
              file=sys.stderr)  # fmt: skip
    comparison = Comparison(arguments)
    print(HEADER, flush=True)
    # All shapes at the short context first, so that a run out of time still shows each shape.
    for context in sorted(arguments.contexts):
        for shape in arguments.shapes:
            if arguments.quick and context > LONG and shape != arguments.shapes[0]:
                continue
            comparison.run_group(shape, context)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=BENCH, capture_output=True, text=True)
    result = {
        "format": "triphase-vs-llama-cpp/1",
        # Without the folders of this machine.
        "command": ["bench/vs_llama_cpp.py", *(a.rsplit("/", 1)[-1] for a in sys.argv[1:])],
        "cpu": cpu_name(),
        "weights": arguments.weights,
        "threads": arguments.threads,
        "commit": commit.stdout.strip(),
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "load_average_at_start": load,
        "ops": comparison.ops,
        "read_bytes_per_second": comparison.bandwidth,
        "steps": arguments.steps,
        "repeats": arguments.repeats,
        "seconds": round(time.monotonic() - comparison.started, 1),
        "cells": comparison.cells,
    }
    output = pathlib.Path(
        arguments.output or BENCH / "results" / f"{slug(cpu_name())}-{arguments.threads}-threads"
    )
    output.mkdir(parents=True, exist_ok=True)
    name = "vs_llama_cpp" if arguments.weights == "fp16" else f"vs_llama_cpp_{arguments.weights}"
    (output / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (output / f"{name}.md").write_text(markdown(result))
    print(f"wrote {output}/{name}.json and .md after {result['seconds']:.0f} s", file=sys.stderr)
    complete = all("llama_cpp" in cell and "ours" in cell for cell in comparison.cells)
    return 0 if complete else 1


def markdown(result):
    bandwidth = result["read_bytes_per_second"]
    lines = [
        f"# Triphase and llama.cpp, {TYPES[result['weights']]} weights, F16 KV",
        "",
        f"{result['cpu']}, {result['threads']} threads, {result['ops']}; llama-cpp-python "
        f"{result['llama_cpp_python']}; Triphase {result['commit'][:12]}; load average at the start "
        f"{result['load_average_at_start']:.2f}; "
        + (
            f"{bandwidth / 1e9:.1f} GB/s measured read bandwidth."
            if bandwidth
            else "no read bandwidth."
        ),
        "",
        "Tokens per second: median of the repeats (smallest and largest as parts of the median). "
        "llama.cpp at the better of its flash-attention settings in each cell (FA, no FA). The "
        "programs take turns; the decode ratio is the median over the turns (smallest-largest). Bound: "
        "weights and KV of a step read once at the measured bandwidth.",
        "",
        HEADER,
        *(table_row(cell) for cell in result["cells"]),
        "",
        f"Made by `{' '.join(result['command'])}` in {result['seconds']:.0f} s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
