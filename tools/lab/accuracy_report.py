#!/usr/bin/env python3
"""Regenerates docs/accuracy.md: what every attention method costs in accuracy on the shipped models.

    tools/lab/accuracy_report.py build/release/bin/triphase            # docs/accuracy.md, within --minutes
    tools/lab/accuracy_report.py TRIPHASE --quick --output accuracy.md

Every number comes from `triphase eval` in this run, and every sentence about numbers is chosen by them. The counts of
samples are chosen so that the whole takes about --minutes: a probe times each task first, and stderr says what was
chosen. --full measures all combinations, which takes longer. Text: the part of the models' sources that
their training left out (Debian packages, fetched into build/corpus with apt-get), --text FILE, or --text docs, the prose
of this project's documents. Standard library only.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

from accuracy import methods, questions, reasons, sparq_ablations
from accuracy.held_out_text import ROOT
from accuracy.markdown import bullets
from accuracy.program import LIMITS, Budget, Program

MODELS = ("triphase-mha", "triphase-gqa")
# Of the time, for each model.
WEIGHTS = {"perplexity": 26, "repetition": 16, "needle": 17, "attention": 3, "ablations": 16, "questions": 22}


class Report:
    """What was measured."""

    def __init__(self, grid):
        self.results = methods.Results(grid)
        self.ablations = {}
        self.questions = {}
        self.counts = {}

    def measure(self, program, arguments):
        # Loading a model, and rates that a probe judged too high, take their part too.
        budget = Budget(0.93 * arguments.minutes, {(model, part): weight for model in MODELS
                                                   for part, weight in WEIGHTS.items()})
        for part in WEIGHTS:
            for model in MODELS:
                begin = time.monotonic()
                count = self.measure_part(program, model, part, budget, arguments)
                self.counts[(model, part)] = count
                print(f"{model} {part}: {count} {unit_of(part)}, {time.monotonic() - begin:.0f} s", file=sys.stderr)

    def measure_part(self, program, model, part, budget, arguments):
        limits = LIMITS[part]
        if part == "ablations":
            self.ablations[model] = sparq_ablations.Ablations(program, model)
            self.ablations[model].measure(budget, limits)
            return self.ablations[model].count
        if part == "questions":
            sparsities = ("0.9",) if arguments.quick else ("0.5", "0.7", "0.9")
            self.questions[model] = questions.Questions(program, model, sparsities)
            self.questions[model].measure(budget, limits)
            return self.questions[model].documents
        if part == "perplexity":
            limits = (limits[0], max(limits[0], min(limits[1], self.windows_of(program, model))))
        rows, count = methods.measure(program, model, part, self.results.grid, budget, limits)
        self.results.rows[(model, part)] = rows
        return count

    @staticmethod
    def windows_of(program, model):
        """Whole windows that the text has."""
        sample = program.text[:20000]
        tokens = program.count_tokens(model, sample)
        return int(len(program.text) / len(sample) * tokens / program.short_window)

    def raw(self):
        """Everything, for JSON."""
        rows = [row | {"model": model} for (model, _), rows in self.results.rows.items() for row in rows]
        rows += [{"model": model, "part": "ablations", "options": options, "repetition": value, "repetition_stderr": error}
                 for model, one in self.ablations.items() for options, (value, error) in one.scores.items()]
        rows += [row | {"model": model, "part": "questions", "key": key}
                 for model, one in self.questions.items() for key, rows in one.rows.items() for row in rows]
        return rows


def unit_of(part):
    return {"perplexity": "windows", "attention": "windows", "questions": "documents",
            "needle": "samples of each length and depth"}.get(part, "samples")


def text_named(name):
    return {None: "the last 3 % of every source of the models' training text, which training left out "
                  "(tools/lab/train_test_model/sources.py), in pieces of 8,000 characters from all over it",
            "docs": "the prose of the documents of this project, which the models have not seen"}.get(name, name)


def document(report, program, arguments, seconds):
    results = report.results
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    sizes = "; ".join(f"{model} {part}: {count} {unit_of(part)}" for (model, part), count in report.counts.items())
    left_out = results.grid.left_out(methods.FULL)
    targets = methods.targets(results, MODELS)
    missed = reasons.target_reasons(results, report.ablations, targets)
    beside = [one for model in MODELS
              for one in (reasons.better_than_dense(results, model) + reasons.paper_comparisons(results, model)
                          + reasons.same_order(results, model))]
    out = ["# Accuracy of the attention methods\n",
           "Made by `tools/lab/accuracy_report.py`; do not edit. Every number is a mean with its standard error, measured by "
           "`triphase eval` ([eval.md](eval.md) defines each), and every sentence about numbers was chosen by them. A "
           "compression is the share of dense attention's KV bytes that a decode step reads, a KV sparsity the share of the "
           "context's tokens that it leaves out. Scored tokens go through the decode path, behind a dense prompt; with squeezed attention the questions about a "
           "fixed context choose their tokens too. Samples are "
           "the same for every method. H2O's budget is a share of the prompt's tokens and does not grow; Quest's is whole "
           "pages; topk reads every key whatever its sparsity. Two scores are told apart when they differ by more than two "
           "standard errors.\n",
           f"Windows of {program.short_window} tokens (perplexity, repetition, attention), needles in up to "
           f"{program.window - 48}; {sizes}. Text: "
           f"{text_named(arguments.text)}. "
           f"Commit {commit}, {platform.machine()}, {program.threads} threads, {seconds / 60:.1f} minutes. "
           + (f"Not measured here, but by `--full`: {'; '.join(left_out)}." if left_out else "") + "\n",
           "## Targets\n",
           methods.targets_table(targets),
           "\nErrors of these shares are as if both sides had their own samples; they share them, so that the true ones "
           "are smaller.\n"]
    if missed:
        out.append("What the numbers say about the misses:\n\n" + bullets(missed))
    out += ["## Beside the papers\n", bullets(beside),
            "## What the methods keep of dense attention\n",
            "Coverage is the share of dense attention's weight that the chosen tokens hold, top-k agreement the share of the "
            "heaviest tokens that were chosen.\n", methods.observed_table(results, MODELS), "## Every method\n"]
    out += [methods.section(results, model) for model in MODELS]
    out.append("## SparQ's ablations\n")
    out += [sparq_ablations.section(report.ablations[model]) for model in MODELS]
    out.append("## Questions about a fixed context\n")
    out += [questions.section(report.questions[model]) for model in MODELS]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the triphase program")
    parser.add_argument("--output", default=str(ROOT / "docs" / "accuracy.md"))
    parser.add_argument("--minutes", type=float, default=14.0, help="about how long it may take (default 14)")
    parser.add_argument("--quick", action="store_true", help="few samples, short windows, one sparsity: to try the script")
    parser.add_argument("--full", action="store_true", help="every KV sparsity and compression with INT8 as well")
    parser.add_argument("--window", type=int, default=2048, help="tokens of the longest sequences")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--text", metavar="FILE|docs", help="UTF-8 text to use instead of what training left out of the "
                        "models' sources; docs: the project's documents")
    parser.add_argument("--raw", help="also keep all rows there (JSON)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.window = min(arguments.window, 768)
        arguments.minutes = 0.0
    grid = methods.QUICK if arguments.quick else methods.FULL if arguments.full else methods.USUAL
    begin = time.monotonic()
    report = Report(grid)
    with tempfile.TemporaryDirectory() as scratch:
        program = Program(arguments.program, arguments.threads, arguments.window, arguments.text, pathlib.Path(scratch))
        report.measure(program, arguments)
        if arguments.raw:
            pathlib.Path(arguments.raw).write_text(json.dumps(report.raw(), indent=1), encoding="utf-8")
        text = document(report, program, arguments, time.monotonic() - begin)
    pathlib.Path(arguments.output).write_text(text, encoding="utf-8")
    print(f"wrote {arguments.output} after {(time.monotonic() - begin) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
