#!/usr/bin/env python3
"""Regenerates docs/accuracy.md: what every attention method costs in accuracy on the shipped models.

    tools/accuracy_report.py build/release/bin/triphase            # docs/accuracy.md, within --minutes
    tools/accuracy_report.py TRIPHASE --quick --output accuracy.md

Every number comes from `triphase eval` in this run. The counts of samples are chosen so that the whole takes
about --minutes here: a probe times each task first. Text: the prose of this project's documents, which no model
was trained on, or --text FILE. Standard library only.
"""

import argparse
import collections
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("triphase-mha", "triphase-gqa")
KV_DTYPES = ("fp16", "int8")
# topk reads every key: it has a place among KV sparsities, and none below 1/2 of the bytes.
BY_BYTES = ("sparq", "swa", "h2o", "lm-infinite", "local", "strided")
BY_TOKENS = ("swa", "sparq", "h2o", "topk", "quest", "lm-infinite", "local", "strided")
# Pages small enough for these contexts; the first layers are as sparse as the others, for a fair budget.
OPTIONS = ("--attention-option", "quest.dense_layers=0")
SEED = "11"


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is asked of the methods. The targets need 0.8 and 1/8."""
    sparsities: tuple = ("0", "0.2", "0.4", "0.6", "0.8", "0.9")
    compressions: tuple = ("1/2", "1/4", "1/8")


QUICK_GRID = Grid(("0.8",), ("1/8",))


@dataclasses.dataclass(frozen=True)
class Job:
    """One `triphase eval`: a task over a sweep."""
    model: str
    task: str
    sweep: tuple
    cells: int
    lengths: tuple = ()

    @property
    def kind(self):
        return (self.model, self.task)


def prose(markdown):
    """Paragraphs and list items, without code, tables, links' targets and marks."""
    markdown = re.sub(r"```.*?```", "", markdown, flags=re.S)
    paragraphs = []
    for block in re.split(r"\n\s*\n|\n(?=[-*] )", markdown):
        lines = [line.strip() for line in block.splitlines() if not line.lstrip().startswith(("|", "#"))]
        words = " ".join(" ".join(lines).split())
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words)
        words = re.sub(r"[`*]", "", words).removeprefix("- ")
        if len(words) > 80:
            paragraphs.append(words)
    return paragraphs


def held_out_text():
    """The project's own documents: nobody trained on them. Every paragraph once, in a fixed order."""
    paragraphs = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]:
        if path.name != "accuracy.md":
            paragraphs += prose(path.read_text(encoding="utf-8"))
    # So that a window is of one document's subject, but not the same sentence over and over.
    paragraphs = list(dict.fromkeys(paragraphs))
    return "\n".join(paragraphs) + "\n"


class Evaluator:
    def __init__(self, arguments, folder):
        self.program = os.path.abspath(arguments.program)
        self.threads = arguments.threads
        self.window = arguments.window
        self.folder = folder
        self.text = pathlib.Path(arguments.text).read_text(encoding="utf-8") if arguments.text else held_out_text()
        self.whole = folder / "text.txt"
        self.whole.write_text(self.text, encoding="utf-8")
        self.characters_per_token = self.measure_text()

    def measure_text(self):
        """With the tokenizer of the models, which is one."""
        sample = self.text[:20000]
        (self.folder / "sample.jsonl").write_text(json.dumps({"text": sample}) + "\n", encoding="utf-8")
        subprocess.run([self.program, "score", "--model", str(ROOT / "models/shipped" / MODELS[0]), "--requests",
                        str(self.folder / "sample.jsonl"), "--output", str(self.folder / "sample.out"), "--quiet",
                        "--progress", "off"], check=True, capture_output=True)
        return len(sample) / len(json.loads((self.folder / "sample.out").read_text())["tokens"])

    @property
    def windows(self):
        """Whole windows that the text has."""
        return int(len(self.text) / self.characters_per_token / self.window)

    def run(self, job, count):
        command = [self.program, "eval", "--model", str(ROOT / "models/shipped" / job.model), "--task", job.task,
                   "--window", str(self.window), "--samples", str(count), "--seed", SEED, "--threads",
                   str(self.threads), "--progress", "off", "--quiet", "--format", "json", *job.sweep]
        if job.task in ("perplexity", "attention"):
            command += ["--data", str(self.limited_text(count))]
            command += ["--prefill-len", str(self.window // 2)]
        else:
            command += ["--data", str(self.whole)]
        if job.task == "repetition":
            command += ["--cue-len", "24", "--answer-len", "32"]
        if job.lengths:
            command += ["--lengths", ",".join(map(str, job.lengths)), "--depths", "0,0.25,0.5,0.75,1"]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return json.loads(done.stdout), time.monotonic() - begin

    def limited_text(self, windows):
        """perplexity scores all windows of a text, so that their number is the text's length."""
        path = self.folder / f"windows-{windows}.txt"
        characters = int(windows * (self.window - 1) * self.characters_per_token)
        path.write_text(self.text[:characters], encoding="utf-8")
        return path


def jobs_of(model, window, grid):
    sparse = ("--sparsities", ",".join(grid.sparsities), *OPTIONS)
    both = ("--kv-dtypes", ",".join(KV_DTYPES))
    tokens = ("--attentions", "dense," + ",".join(BY_TOKENS))
    bytes_ = ("--attentions", "dense," + ",".join(BY_BYTES), "--compressions", ",".join(grid.compressions))
    by_tokens = len(KV_DTYPES) * (1 + len(grid.sparsities) * len(BY_TOKENS))
    by_bytes = 1 + len(grid.compressions) * len(BY_BYTES)
    lengths = (window // 4, window // 2, window - 48)
    return [
        Job(model, "perplexity", (*tokens, *sparse, *both), by_tokens),
        Job(model, "perplexity", (*bytes_, *both), len(KV_DTYPES) * by_bytes),
        Job(model, "repetition", (*bytes_, *both), len(KV_DTYPES) * by_bytes),
        Job(model, "needle", (*bytes_, *both), len(KV_DTYPES) * by_bytes, lengths),
        Job(model, "attention", ("--attentions", "swa,sparq,h2o,lm-infinite,local", "--sparsities", "0.8"), 5),
    ]


def choose_counts(evaluator, jobs, minutes):
    """Samples of each (model, task), so that everything takes about so long: of the same time for each task."""
    limits = {"perplexity": (2, max(2, min(16, evaluator.windows))), "repetition": (8, 100), "needle": (2, 20), "attention": (1, 2)}
    counts = {}
    groups = collections.defaultdict(list)
    for job in jobs:
        groups[job.kind].append(job)
    spent = 0.0
    rates = {}
    for kind, members in groups.items():
        job = members[0]
        probe = dataclasses.replace(job, sweep=("--attentions", "swa,sparq", "--sparsities", "0.8"), cells=2)
        few = limits[job.task][0]
        _, seconds = evaluator.run(probe, few)
        spent += seconds
        rates[kind] = seconds / few / 2
    shares = {"perplexity": 0.45, "repetition": 0.25, "needle": 0.25, "attention": 0.05}
    left = max(minutes * 60 - spent, 1.0)
    for kind, members in groups.items():
        low, high = limits[kind[1]]
        seconds = left * shares[kind[1]] / len({job.model for job in jobs})
        count = int(seconds / (rates[kind] * sum(job.cells for job in members)))
        counts[kind] = max(low, min(high, count))
    return counts


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join(["---"] + ["---:"] * (len(header) - 1)) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def with_error(value, error, digits=2):
    return f"{value:.{digits}f} ± {error:.{digits}f}"


class Results:
    """Rows of all jobs, looked up by what was asked."""

    def __init__(self, grid):
        self.grid = grid
        self.rows = collections.defaultdict(list)

    def add(self, job, rows):
        self.rows[job.kind] += rows

    def find(self, model, task, method, dtype, **wanted):
        for row in self.rows[(model, task)]:
            if row["attention"] != method or row["kv_dtype"] != {"fp16": "f16"}.get(dtype, dtype):
                continue
            if all(row.get(name) is not None and same(row[name], value) for name, value in wanted.items()):
                return row
        return None

    def dense(self, model, task, dtype, **wanted):
        return self.find(model, task, "dense", dtype, **wanted)

    def cells(self, model, task, method, dtype, **wanted):
        return [row for row in self.rows[(model, task)]
                if row["attention"] == method and row["kv_dtype"] == {"fp16": "f16"}.get(dtype, dtype)
                and all(row.get(name) is not None and same(row[name], value) for name, value in wanted.items())]


def same(a, b):
    return a == b if isinstance(b, str) else isinstance(a, (int, float)) and abs(a - b) < 1e-9


def share_of(text):
    over, _, under = text.partition("/")
    return float(over) / float(under or 1)


def compression_table(results, model, task, dtype, name, digits):
    """A block in the form of SparQ's Table 2."""
    dense = results.dense(model, task, dtype)
    rows = [["dense", with_error(dense[name], dense[f"{name}_stderr"], digits)] + [""] * len(results.grid.compressions)]
    for method in BY_BYTES:
        cells = []
        for compression in results.grid.compressions:
            row = results.find(model, task, method, dtype, compression=share_of(compression))
            cells.append(with_error(row[name], row[f"{name}_stderr"], digits))
        rows.append([method, "", *cells])
    return table([f"{name}, KV {dtype}", "1", *results.grid.compressions], rows)


def needle_scores(results, model, method, dtype, **wanted):
    """By length: mean over depths and its standard error."""
    scores = collections.defaultdict(list)
    for row in results.cells(model, "needle", method, dtype, **wanted):
        if row["length"] != "all":
            scores[row["length"]].append(row)
    return {length: (sum(row["needle"] for row in rows) / len(rows),
                     math.sqrt(sum(row["needle_stderr"] ** 2 for row in rows)) / len(rows))
            for length, rows in scores.items()}


def needle_table(results, model, dtype):
    """A block in the form of SparQ's Table 3."""
    dense = needle_scores(results, model, "dense", dtype)
    rows = []
    for length in dense:
        rows.append([f"{length} tokens", "1", *[percent(*dense[length])] * len(BY_BYTES)])
        for compression in results.grid.compressions:
            rows.append(["", compression, *(percent(*needle_scores(results, model, method, dtype,
                                                                  compression=share_of(compression))[length])
                                            for method in BY_BYTES)])
    return table([f"needle, KV {dtype}", "compression", *BY_BYTES], rows)


def percent(value, error):
    return f"{100 * value:.0f} ± {100 * error:.0f} %"


def sparsity_table(results, model, dtype):
    """A block in the form of ALISA's Fig. 8: perplexity by KV sparsity."""
    dense = results.dense(model, "perplexity", dtype)
    rows = [["dense", with_error(dense["perplexity"], dense["perplexity_stderr"]), *[""] * (len(results.grid.sparsities) - 1)]]
    for method in BY_TOKENS:
        cells = []
        for sparsity in results.grid.sparsities:
            row = results.find(model, "perplexity", method, dtype, kv_sparsity=float(sparsity))
            cells.append(with_error(row["perplexity"], row["perplexity_stderr"]))
        rows.append([method, *cells])
    return table([f"perplexity, KV {dtype}", *(f"{100 * float(one):.0f} %" for one in results.grid.sparsities)], rows)


def ratio(row, dense, name):
    """row / dense and its standard error, as if their samples were independent (they are the same: an upper bound)."""
    value = row[name] / dense[name] if dense[name] else math.nan
    errors = [one[f"{name}_stderr"] / one[name] if one[name] else 0.0 for one in (row, dense)]
    return value, value * math.hypot(*errors)


def targets(results):
    """(what, target, found, met) of DESIGN.md's accuracy targets."""
    rows = []
    for model in MODELS:
        dense = results.dense(model, "perplexity", "fp16")
        value, error = ratio(results.find(model, "perplexity", "swa", "int8", kv_sparsity=0.8), dense, "perplexity")
        rows.append((f"{model}: SWA at 80 % KV sparsity with INT8, perplexity beside dense FP16", "at most 1.05",
                     with_error(value, error, 3), value <= 1.05))
        for task in ("repetition", "needle"):
            wanted = {"length": "all"} if task == "needle" else {}
            dense = results.dense(model, task, "fp16", **wanted)
            for method, least in (("sparq", True), ("lm-infinite", False), ("local", False)):
                row = results.find(model, task, method, "fp16", compression=1 / 8, **wanted)
                value, error = ratio(row, dense, task)
                rows.append((f"{model}: {method} at 1/8 of the bytes, {task} beside dense",
                             "at least 0.95" if least else "at most 0.5", with_error(value, error, 3),
                             value >= 0.95 if least else value <= 0.5))
    return rows


def explanation(results):
    """What the methods keep of dense attention's weights, which is why they score as they do."""
    rows = []
    for model in MODELS:
        for method in ("swa", "sparq", "h2o", "lm-infinite", "local"):
            cells = [row for row in results.rows[(model, "attention")]
                     if row["attention"] == method and row["layer"] == "all"]
            layers = [row["coverage"] for row in results.rows[(model, "attention")]
                      if row["attention"] == method and row["layer"] != "all"]
            row = cells[0]
            rows.append([model, method, percent(row["coverage"], row["coverage_stderr"]),
                         f"{100 * min(layers):.0f} %", percent(row["top_k_agreement"], row["top_k_agreement_stderr"]),
                         percent(row["attention_sparsity"], row["attention_sparsity_stderr"]),
                         percent(row["dense_attention_sparsity"], row["dense_attention_sparsity_stderr"]),
                         "" if row["spearman"] is None else f"{row['spearman']:.3f}"])
    return table(["at 80 % KV sparsity", "method", "coverage", "of the worst layer", "top-k agreement",
                  "weights below 1 % of the largest", "the same, dense", "Spearman's rho"], rows)


READING = """Coverage is the share of dense attention's weight that the chosen tokens hold, top-k agreement the share of the
heaviest tokens that were chosen. Where a method misses a target, its coverage in the table above says how much of
what dense attention looks at it never saw. These models are small (5 million parameters): few heads do all the
looking up, so that a miss shows more than in the papers' models.
"""


def document(results, counts, arguments, seconds):
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    sizes = "; ".join(f"{model} {task}: {count} {'windows' if task in ('perplexity', 'attention') else 'samples'}"
                      for (model, task), count in counts.items())
    out = ["# Accuracy of the attention methods\n",
           "Made by `tools/accuracy_report.py`; do not edit. Every number is a mean with its standard error, measured by "
           "`triphase eval` ([eval.md](eval.md) defines each). A compression is the share of dense attention's KV bytes "
           "that a decode step reads, a KV sparsity the share of the context's tokens that it leaves out; prompts are "
           "dense. Scored tokens go through the decode path. Samples are the same for every method. H2O's budget is a "
           "share of the prompt's tokens and does not grow; Quest's is whole pages; topk reads every key whatever its "
           "sparsity.\n",
           f"Window {arguments.window} tokens; {sizes} (needle: of each length and depth). Text: "
           f"{arguments.text or 'the prose of the documents of this project, which the models have not seen'}. Commit {commit}, "
           f"{platform.machine()}, {arguments.threads} threads, {seconds / 60:.1f} minutes.\n",
           "## Targets\n",
           table(["what", "target", "found", ""],
                 [[what, target, found, "met" if met else "**missed**"] for what, target, found, met in targets(results)]),
           "\nErrors of these ratios are as if both sides had their own samples; they share them, so that the true ones "
           "are smaller.\n", explanation(results), "\n" + READING]
    for model in MODELS:
        out.append(f"## {model}\n\n### By bytes, as in SparQ's Tables 2 and 3\n")
        for task, name, digits in (("perplexity", "perplexity", 2), ("repetition", "repetition", 1)):
            for dtype in KV_DTYPES:
                out.append(compression_table(results, model, task, dtype, name, digits))
        for dtype in KV_DTYPES:
            out.append(needle_table(results, model, dtype))
        out.append("### By KV sparsity, as in ALISA's Fig. 8\n")
        for dtype in KV_DTYPES:
            out.append(sparsity_table(results, model, dtype))
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the triphase program")
    parser.add_argument("--output", default=str(ROOT / "docs" / "accuracy.md"))
    parser.add_argument("--minutes", type=float, default=15.0, help="about how long it may take")
    parser.add_argument("--quick", action="store_true", help="few samples, short windows, one sparsity: to try the script")
    parser.add_argument("--window", type=int, default=2048, help="tokens of the longest sequences")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--text", help="UTF-8 text to use instead of the project's documents")
    parser.add_argument("--raw", help="also keep all rows there (JSON)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.window = min(arguments.window, 384)
        arguments.minutes = 0.0
    grid = QUICK_GRID if arguments.quick else Grid()
    begin = time.monotonic()
    results = Results(grid)
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = Evaluator(arguments, pathlib.Path(scratch))
        jobs = [job for model in MODELS for job in jobs_of(model, arguments.window, grid)]
        counts = choose_counts(evaluator, jobs, arguments.minutes)
        for job in jobs:
            rows, seconds = evaluator.run(job, counts[job.kind])
            results.add(job, rows)
            print(f"{job.model} {job.task}: {len(rows)} rows, {counts[job.kind]} samples, {seconds:.0f} s",
                  file=sys.stderr)
    if arguments.raw:
        pathlib.Path(arguments.raw).write_text(
            json.dumps([row | {"model": model} for (model, _), rows in results.rows.items() for row in rows], indent=1))
    pathlib.Path(arguments.output).write_text(document(results, counts, arguments, time.monotonic() - begin),
                                              encoding="utf-8")
    print(f"wrote {arguments.output} after {(time.monotonic() - begin) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
