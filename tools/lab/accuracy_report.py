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
from accuracy.markdown import bullets, table
from accuracy.program import LIMITS, Budget, Program
from accuracy.texts import ROOT

MODELS = ("triphase-mha", "triphase-gqa")
# Of the time, for each model.
WEIGHTS = {"perplexity": 24, "repetition": 16, "needle": 30, "attention": 3, "ablations": 11, "questions": 16}


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
    return {None: "what training left out of the models' training text, the last 3 % of every source "
                  "(tools/lab/train_test_model/sources.py). It is taken in pieces of 8,000 characters",
            "docs": "the prose of the documents of this project, which the models have not seen"}.get(name, name)


def models_said(program):
    sizes = " and ".join(f"{program.parameters(model) / 1e6:.1f} million ({model})" for model in MODELS)
    return (f"The shipped models are small test models: {sizes} parameters. The heads that look things up were set up by hand "
            "and strengthened after training (tools/lab/train_test_model/README.md). What a method loses on them is "
            "no forecast for a large model.\n")


def samples_table(report):
    """How many samples each number has."""
    cells = len({(row["length"], row["depth"]) for row in report.results.needles(MODELS[0], "dense", "fp16")})
    units = {"perplexity": "windows", "repetition": "passages", "needle": f"prompts of each length and depth; {cells} such cells",
             "attention": "windows", "ablations": "passages", "questions": f"documents of {questions.FACTS} questions"}
    rows = [[part, *(str(report.counts[(model, part)]) for model in MODELS), units[part]] for part in WEIGHTS]
    return table(["samples of every number", *MODELS, "which are"], rows)


def targets_said(targets):
    counted = sum(target.counts for target in targets)
    met = sum(target.met for target in targets)
    return (f"A target counts as met only where a control misses it. The control of every method is `random`: as many bytes, "
            "spent on tokens drawn blindly. SparQ and SWA also have `local`: the most recent tokens of the same bytes. A target "
            "of \"at most\" for a window asks that it loses; where `random` loses as well, the target says nothing about "
            f"windows. **{counted} of {len(targets)} targets count as met**, {met - counted} are met by a control too, "
            f"{len(targets) - met} are missed.\n")


def settings_said(report, program, arguments, seconds):
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    left_out = report.results.grid.left_out(methods.FULL)
    return (f"Windows of {program.short_window} tokens (perplexity, repetition, attention), needles in up to "
            f"{program.window - 48}. Text: {text_named(arguments.text)}. "
            f"Commit {commit}, {platform.machine()}, threads: {program.threads}, {seconds / 60:.1f} minutes."
            + (f" Not measured here, but by `--full`: {'; '.join(left_out)}." if left_out else "") + "\n")


def document(report, program, arguments, seconds):
    results = report.results
    targets = methods.targets(results, MODELS)
    missed = reasons.target_reasons(results, report.ablations, targets)
    beside = [one for model in MODELS
              for one in (reasons.better_than_dense(results, model) + reasons.paper_comparisons(results, model)
                          + reasons.same_order(results, model))]
    swa = [one for model in MODELS for one in reasons.swa_losses(results, report.questions[model], model)]
    division, divided = methods.division_table(results, MODELS)
    out = ["# Accuracy of the attention methods\n",
           "Made by `tools/lab/accuracy_report.py`; do not edit.\n",
           models_said(program), samples_table(report),
           "The rows of a table share their samples. Few samples make wide errors: a needle cell of one sample is 0 or "
           "100 %.\n",
           "## Targets\n", targets_said(targets), methods.targets_table(targets),
           "Both sides of a share had the same samples. Its error is that of their differences, sample by sample.\n"]
    sinks = [one for model in MODELS for one in reasons.first_tokens_suffice(results, model)]
    if sinks:
        out.append(bullets(sinks))
    if missed:
        out.append("What the numbers say about the misses:\n\n" + bullets(missed))
    out += ["## How to read the numbers\n",
            "Every number is a mean with its standard error, measured by `triphase eval` ([eval.md](eval.md) defines each). "
            "The numbers choose the sentences about them. A compression is the share of dense attention's KV bytes that a "
            "decode step reads. A KV sparsity is the share of the context's tokens that it leaves out. Scored tokens go "
            "through the decode path, behind a dense prompt; with squeezed attention the questions about a fixed context "
            "choose their tokens too. H2O's budget is a share of the prompt's tokens and does not grow; Quest's is whole "
            "pages; topk reads every key whatever its sparsity. Two scores are told apart when they differ by more than two "
            "standard errors of that difference, sample by sample.\n",
            settings_said(report, program, arguments, seconds),
            "## Beside the papers\n", bullets(beside),
            "### What SWA loses\n",
            "Perplexity hides it: the next token mostly follows from near ones. A token that SWA has left out hardly ever "
            "returns ([eval.md](eval.md)).\n", bullets(swa),
            "## How SparQ's bytes are divided\n",
            "A compression of 1/8 leaves an even division 8 of 64 channels for scores. `triphase eval` gives scores 13 "
            "instead, so that fewer tokens are attended ([eval.md](eval.md)). At 1/2 and 1/4 both divisions are the same. Both "
            "were run on all tasks by bytes, with FP16 KV. They were not run on `attention` and the questions, whose budgets are "
            "KV sparsities; there `sparq.rank` is its default, 32 channels.\n",
            division, bullets(divided),
            "## What the methods keep of dense attention\n",
            "Coverage is the share of dense attention's weight that the chosen tokens hold. Top-k agreement is the share of "
            "the heaviest tokens that were chosen.\n", methods.observed_table(results, MODELS), "## Every method\n"]
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
