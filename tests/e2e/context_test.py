#!/usr/bin/env python3
"""Memory is divided for the longest request of a job, not for the model's context.

    context_test.py TRIPHASE MODEL
"""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from unfinished import forget_records  # noqa: E402

PROGRAM, MODEL = sys.argv[1:3]
LONGEST = 131072
METHODS = ((), ("--attention", "quest", "--kv-sparsity", "0.8"), ("--attention", "sparq", "--kv-sparsity", "0.8"),
           ("--attention", "h2o", "--kv-sparsity", "0.8"), ("--attention", "topk", "--kv-sparsity", "0.8"))  # fmt: skip
POLICIES = ("triphase", "device-only", "flexgen", "vllm", "accelerate", "zero")


class Context(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        # The same weights, as of a model that was made for long contexts.
        cls.model = cls.folder / "model"
        shutil.copytree(MODEL, cls.model)
        config = json.loads((cls.model / "config.json").read_text())
        config["max_position_embeddings"] = LONGEST
        (cls.model / "config.json").write_text(json.dumps(config))

    def prompts(self, name, lengths, generated, draw):
        file = self.folder / f"{name}.jsonl"
        with file.open("w") as out:
            for length in lengths:
                tokens = [draw.randrange(20, 1900) for _ in range(length)]
                print(json.dumps({"prompt_tokens": tokens, "max_tokens": generated}), file=out)
        return file

    # A pipe's lines are not known beforehand: memory is divided for any that the model takes.
    def run_job(self, prompts, *options, policy="triphase", pipe=False, fresh=True):
        output = self.folder / f"{prompts.stem}.{'pipe' if pipe else 'file'}.out.jsonl"
        if fresh:
            output.unlink(missing_ok=True)
        profile = ("--profile", "t4") if policy == "triphase" and "--plan" not in options else ()
        done = subprocess.run(
            [PROGRAM, "run", "--model", str(self.model), "--prompts", "-" if pipe else str(prompts), "--output",
             str(output), *(("--overwrite",) if fresh else ()), "--ignore-eos", "--progress", "off", "--kv-dtype",
             "bf16", "--recompute", "off", "--host-memory", "256MiB", "--policy", policy, *profile, *options],
            input=prompts.read_text() if pipe else None, capture_output=True, text=True, timeout=300,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder)})  # fmt: skip
        return done, output

    def summary(self, output):
        return json.loads(pathlib.Path(f"{output}.summary.json").read_text())

    def test_short_lines_need_little_memory_whatever_the_model_takes(self):
        draw = random.Random(5)
        prompts = self.prompts("short", [draw.randrange(20, 150) for _ in range(24)], 24, draw)
        for method in METHODS:
            with self.subTest(method=method):
                options = ("--device-memory", "24832KiB", *method)
                done, output = self.run_job(prompts, *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertLessEqual(self.summary(output)["peak_bytes"]["device"], 24832 << 10)
                dry, _ = self.run_job(prompts, *options, "--dry-run", fresh=False)
                self.assertEqual(dry.returncode, 0, dry.stderr)
                roomy, expected = self.run_job(prompts, "--device-memory", "2GiB", *method, pipe=True)
                self.assertEqual(roomy.returncode, 0, roomy.stderr)
                answers = output.read_bytes()
                self.assertEqual(answers, expected.read_bytes())
                # The same budget for any line that the model takes: without a method more layers are streamed.
                piped, output = self.run_job(prompts, *options, pipe=True)
                self.assertEqual((piped.returncode, output.exists()), (5, False) if method else (0, True))
                if not method:
                    self.assertEqual(output.read_bytes(), answers)

    # Whatever the job: what runs with memory for any line that the model takes runs, with the same answers.
    def test_no_line_that_any_division_holds_is_refused(self):
        draw = random.Random(11)
        ran = 0
        for job in range(16):
            lengths = [draw.choice((12, 60, 300)) + draw.randrange(20) for _ in range(draw.randrange(4, 20))]
            if job % 3 == 0:
                lengths[draw.randrange(len(lengths))] = draw.randrange(900, 2500)
            prompts = self.prompts(f"job{job}", lengths, draw.randrange(2, 20), draw)
            policy, method = draw.choice(POLICIES), draw.choice(METHODS)
            options = ["--device-memory", f"{draw.choice((20, 32, 48, 150, 700))}MiB", *method]
            if draw.random() < 0.3:
                options += ["--batch-size", str(draw.randrange(1, 9))]
            with self.subTest(job=job, policy=policy, options=options):
                done, output = self.run_job(prompts, *options, policy=policy)
                kept = output.read_text() if output.exists() else ""
                any_line, expected = self.run_job(prompts, *options, "--max-context", str(LONGEST), policy=policy)
                self.assertNotIn("divided for requests", any_line.stderr)
                if any_line.returncode > 1:
                    self.assertIn(any_line.returncode, (2, 5), any_line.stderr)
                    continue
                self.assertIn(done.returncode, (0, any_line.returncode), done.stderr)
                for found, before in zip(kept.splitlines(), expected.read_text().splitlines(), strict=True):
                    if "error" not in json.loads(before):
                        self.assertEqual(found, before)
                        ran += 1
        self.assertGreater(ran, 60)

    # Of many lines only those that look longest are tokenized. A line of rare characters has many more tokens than
    # its length suggests: it follows when the others are done.
    def test_a_line_that_looked_shorter_than_it_is_runs_at_the_end(self):
        prompts = self.folder / "many.jsonl"
        lines = [{"prompt": "The bird sang in the tree. " * 12, "max_tokens": 2} for _ in range(300)]
        lines[40] = {"prompt": "\u9f98" * 100, "max_tokens": 2}
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for policy in ("triphase", "device-only"):
            with self.subTest(policy=policy):
                options = ("--device-memory", "48MiB", "--order", "completed", "--predict", "--profile", "t4")
                options = options[:5] if policy == "triphase" else options
                done, output = self.run_job(prompts, *options, policy=policy)
                self.assertEqual(done.returncode, 0, done.stderr)
                held = int(re.search(r"requests of more than (\d+) tokens wait", done.stderr)[1])
                whole = output.read_bytes()
                records = [json.loads(line) for line in whole.splitlines()]
                self.assertEqual(records[-1]["index"], 40)
                self.assertGreater(records[-1]["usage"]["prompt_tokens"], held)
                self.assertLess(max(record["usage"]["prompt_tokens"] for record in records[:-1]), held)
                self.assertEqual(self.summary(output)["prediction"]["requests"], 300)
                # As a pipe's line, and again in a job that goes on.
                piped, expected = self.run_job(prompts, *options[:4], policy=policy, pipe=True)
                self.assertEqual(piped.returncode, 0, piped.stderr)
                self.assertEqual(sorted(whole.splitlines()), sorted(expected.read_bytes().splitlines()))
                forget_records(output, 290)
                again, output = self.run_job(prompts, *options, "--retry-failed", policy=policy, fresh=False)
                self.assertEqual(again.returncode, 0, again.stderr)
                self.assertEqual(sorted(whole.splitlines()), sorted(output.read_bytes().splitlines()))

    # Scoring divides memory for the longest line too; a text with more tokens than it looks follows.
    def test_scores_do_not_depend_on_what_memory_is_divided_for(self):
        requests = self.folder / "scored.jsonl"
        lines = [{"context": "The bird sang in the tree. " * (1 + index % 12), "continuation": "It was happy."}
                 for index in range(300)]  # fmt: skip
        lines[40] = {"text": "\u9f98" * 200}
        lines[41] = {"text": "The bird sang. " * 9}
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def score(name, *options):
            output = self.folder / f"{name}.jsonl"
            done = subprocess.run(
                [PROGRAM, "score", "--model", str(self.model), "--requests", str(requests), "--output", str(output),
                 "--overwrite", "--progress", "off", "--kv-dtype", "bf16", "--policy", "device-only", *options],
                capture_output=True, text=True, timeout=300)  # fmt: skip
            return done, output

        for method in METHODS[::3]:  # dense: scored as prompts are computed; h2o: decoded
            with self.subTest(method=method):
                small = ("--device-memory", "36MiB", *method)
                if method:  # no division that it has room for holds so long a text
                    lines[40] = lines[41]
                    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
                    refused, _ = score("any", *small, "--max-context", str(LONGEST))
                    self.assertEqual(refused.returncode, 5, refused.stderr)
                roomy, expected = score("roomy", "--device-memory", "2GiB", "--max-context", str(LONGEST), *method)
                self.assertEqual(roomy.returncode, 0, roomy.stderr)
                done, output = score("small", *small)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("wait for the others to end" in done.stderr, not method, done.stderr)
                self.assertEqual(output.read_bytes(), expected.read_bytes())
                self.assertLessEqual(self.summary(output)["peak_bytes"]["device"], 36 << 20)
                dry, _ = score("small", *small, "--dry-run")
                self.assertEqual(dry.returncode, 0, dry.stderr)

    # Whatever batch and streamed layers are chosen: 64 tokens of one layer are 32 KiB.
    def test_more_memory_never_fails_more_lines(self):
        prompts = self.prompts("two", [100, 20], 3, random.Random(5))
        for policy in (("triphase", "--policy-option=p1=1", "--policy-option=alpha=0.8"),
                       ("flexgen", "--policy-option=kv-share=0.5"), ("accelerate",)):  # fmt: skip
            failed = self.failed_lines(prompts, range(4000, 14600, 200), *policy, "--kv-dtype", "int8")
            self.assertEqual(failed, sorted(failed, reverse=True), policy)
            self.assertEqual((failed[0], failed[-1]), (2, 0), policy)

    # Weights that would lie on the device make room for a long line: more of them are streamed.
    def test_more_memory_never_fails_long_lines(self):
        prompts = self.prompts("long", [800, 100, 20], 3, random.Random(5))
        for policy in ("device-only", "vllm", "flexgen", "accelerate"):
            for options in ((), ("--max-context", "900")):
                failed = self.failed_lines(prompts, range(5000, 17500, 2000), policy, "--kv-dtype", "bf16", *options)
                self.assertEqual(failed, sorted(failed, reverse=True), (policy, options))
                self.assertEqual((failed[0], failed[-1]), (3, 0), (policy, options))

    # The second stage has the weights of the first one, and smaller buffers.
    def test_the_peak_of_two_stages_keeps_to_the_budget(self):
        prompts = self.prompts("stages", [800] + [100, 20] * 16, 3, random.Random(5))
        for policy in ("device-only", "vllm"):
            output = self.folder / "stages.out.jsonl"
            done = subprocess.run(
                [PROGRAM, "run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--overwrite",
                 "--policy", policy, "--device-memory", "17920KiB", "--host-memory", "256MiB", "--kv-dtype", "bf16",
                 "--threads", "1", "--progress", "off"], capture_output=True, text=True, timeout=300)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("wait for the others to end", done.stderr)
            self.assertNotIn("streamed", done.stderr)
            self.assertLessEqual(self.summary(output)["peak_bytes"]["device"], 17920 << 10)

    # With each of the budgets. A job that is refused, since not a block fits, fails all.
    def failed_lines(self, prompts, budgets_kib, *options):
        output = self.folder / f"{prompts.stem}.out.jsonl"
        failed = []
        for kib in budgets_kib:
            done = subprocess.run(
                [PROGRAM, "run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--overwrite",
                 "--device-memory", f"{kib}KiB", "--host-memory", "256MiB", "--threads", "1", "--progress", "off",
                 "--policy", *options], capture_output=True, text=True, timeout=300)  # fmt: skip
            self.assertIn(done.returncode, (0, 1, 5), done.stderr)
            refused = done.returncode == 5
            if not refused:
                self.assertLessEqual(self.summary(output)["peak_bytes"]["device"], kib << 10)
            lines = (prompts if refused else output).read_text().splitlines()
            failed.append(sum(refused or "error" in json.loads(line) for line in lines))
        return failed

    # The plan of short lines leaves no room for long ones.
    def test_a_plan_of_shorter_lines_is_made_again(self):
        draw = random.Random(3)
        options = ("--device-memory", "24MiB", "--attention", "quest", "--kv-sparsity", "0.8")
        done, output = self.run_job(self.prompts("first", [100] * 40, 100, draw), *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = self.folder / "short-plan.json"
        stored = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        stored["workload"].update({"input_len": 5000, "output_len": 5000})
        plan.write_text(json.dumps(stored))
        longer = self.prompts("longer", [100] * 39 + [3000], 8, draw)
        given = ("--plan", str(plan), "--plan-force")
        done, output = self.run_job(longer, *options, *given)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertIn("planning again", done.stderr)
        strict, _ = self.run_job(longer, *options, *given, "--plan-strict")
        self.assertEqual(strict.returncode, 4, strict.stderr)
        self.assertIn("E-PLAN-WORKLOAD", strict.stderr)

    def test_shards_divide_for_their_own_lines(self):
        draw = random.Random(9)
        prompts = self.prompts("sharded", [40, 1500] * 6, 8, draw)
        options = ("--device-memory", "64MiB")
        done, whole = self.run_job(prompts, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = whole.read_text().splitlines()
        contexts = []
        for shard in (0, 1):
            done, output = self.run_job(prompts, *options, "--shard", f"{shard}/2")
            self.assertEqual(done.returncode, 0, done.stderr)
            contexts.append(int(re.search(r"divided for requests of up to (\d+) tokens", done.stderr)[1]))
            self.assertEqual(output.read_text().splitlines(), expected[shard::2])
        self.assertEqual(contexts, [48, 1508])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
