#!/usr/bin/env python3
"""The default policy weighs what it contains: smaller batches and the device alone.

    weigh_test.py TRIPHASE MODEL
"""

import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MODEL = sys.argv[1:3]


class Weigh(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def prompts(self, name, lengths, generated):
        draw = random.Random(1)
        file = self.folder / f"{name}.jsonl"
        with file.open("w") as out:
            for line, length in enumerate(lengths):
                tokens = [draw.randrange(20, 1900) for _ in range(length)]
                print(json.dumps({"id": str(line), "prompt_tokens": tokens, "max_tokens": generated}), file=out)
        return file

    def run_job(self, prompts, policy, *options):
        output = self.folder / f"{prompts.stem}.{policy}.out.jsonl"
        # A card derived from its stated peaks, so that plans are the same on every machine.
        planned = policy == "triphase" and "--plan" not in options
        profile = ("--profile", "t4") if planned or "--predict" in options else ()
        done = subprocess.run(
            [PROGRAM, "run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--overwrite",
             "--ignore-eos", "--progress", "off", "--policy", policy, *profile, *options],
            capture_output=True, text=True, timeout=300, env={**os.environ, "XDG_CACHE_HOME": str(self.folder)})  # fmt: skip
        return done, output

    def predicted(self, prompts, policy, *options):
        done, _ = self.run_job(prompts, policy, "--predict", "--dry-run", *options)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        found = re.search(r"predicted with profile .*: (\d+) requests in \d+ steps, (\S+) s of prefill and (\S+) s of decode",
                          done.stderr)  # fmt: skip
        if found is None:
            return 0, 0.0
        return int(found[1]), float(found[2]) + float(found[3])

    # Whatever the budget and the lines: at least as many lines as on the device alone, and where these are the
    # same lines, no prediction is slower.
    def test_never_predicted_slower_than_the_device_alone(self):
        draw = random.Random(7)
        jobs = {
            "short": self.prompts("short", [17] * 12, 200),
            "long": self.prompts("long", [300] * 8, 24),
            "ragged": self.prompts("ragged", [draw.randrange(5, 700) for _ in range(20)], 40),
        }
        methods = ((), ("--attention", "quest", "--kv-sparsity", "0.8"), ("--attention", "swa", "--kv-sparsity", "0.8"))
        won = 0
        for (name, prompts), budget, method in itertools.product(jobs.items(), ("15MiB", "18MiB", "21MiB"), methods):
            with self.subTest(job=name, budget=budget, method=method):
                options = ("--device-memory", budget, "--host-memory", "512MiB", *method)
                lines, seconds = self.predicted(prompts, "triphase", *options)
                baseline_lines, baseline = self.predicted(prompts, "device-only", *options)
                self.assertGreaterEqual(lines, baseline_lines)
                if lines == baseline_lines and lines > 0:
                    self.assertLessEqual(seconds, baseline * 1.01)  # printed with three digits
                    won += seconds < 0.9 * baseline
                won += lines > baseline_lines
        self.assertGreater(won, 3)  # it is not the device alone everywhere

    # Lines that no batch of 32 leaves room for run in a smaller one; asked for, the batch stays.
    def test_no_line_is_refused_that_a_smaller_batch_holds(self):
        prompts = self.prompts("needy", [700] * 6, 8)
        options = ("--attention", "quest", "--kv-sparsity", "0.8", "--device-memory", "20MiB")
        asked, _ = self.run_job(prompts, "triphase", *options, "--batch-size", "32")
        self.assertNotEqual(asked.returncode, 0)
        done, output = self.run_job(prompts, "triphase", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual([len(record["tokens"]) for record in records], [8] * 6)
        again, _ = self.run_job(prompts, "triphase", *options, "--dry-run")
        self.assertEqual(again.returncode, 0, again.stderr)

    # Lines that only streamed weights leave room for run, alone or beside others.
    def test_no_line_is_refused_that_streamed_weights_leave_room_for(self):
        prompts = self.prompts("alone", [1500], 8)
        done, output = self.run_job(prompts, "triphase", "--device-memory", "16MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("layers streamed from the host", done.stderr)
        self.assertEqual(len(json.loads(output.read_text())["tokens"]), 8)

    # What the log says and what the plan says, where the plan for the others holds them alone.
    def test_log_and_plan_divide_lines_at_one_length(self):
        prompts = self.prompts("divided", [20] * 40 + [1200, 1300], 16)
        for memory in ("16MiB", "17MiB"):
            done, output = self.run_job(prompts, "triphase", "--device-memory", memory)
            self.assertEqual(done.returncode, 0, done.stderr)
            plan = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
            limit = plan["longer_requests"]["above_tokens"]
            self.assertIn(f"requests of more than {limit} tokens wait for the others", done.stderr)

    # A few long lines wait, so that the others need no memory for them.
    def test_long_lines_slow_down_nobody_else(self):
        lengths = [20] * 30 + [1500] + [20] * 30 + [1400] + [20] * 4
        prompts = self.prompts("skewed", lengths, 40)
        options = ("--device-memory", "17MiB", "--kv-dtype", "bf16")
        done, output = self.run_job(prompts, "triphase", *options, "--predict")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = output.read_bytes()
        self.assertEqual([json.loads(line)["index"] for line in text.splitlines()], list(range(66)))
        plan = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
        kept = self.folder / "two-plans.json"
        kept.write_text(json.dumps(plan))
        limit = plan["longer_requests"]["above_tokens"]
        self.assertTrue(59 <= limit < 1400, limit)
        self.assertEqual(summary["requests"]["succeeded"], 66)
        tokens = dict(summary["tokens"])
        # Where blocks are given on demand, preempted requests are computed again.
        self.assertEqual(tokens.pop("recomputed") > 0, summary["placement"]["preemptions"] > 0)
        self.assertEqual(tokens, {"prompt": sum(lengths), "shared_prompt": 0, "generated": 66 * 40})
        self.assertEqual(summary["prediction"]["requests"], 66)
        # The short ones take as long as by themselves on the device.
        _, together = self.predicted(prompts, "triphase", *options)
        lines, short = self.predicted(self.prompts("short", [20] * 64, 40), "device-only", *options)
        self.assertEqual(lines, 64)
        lines, long = self.predicted(self.prompts("long", [1500, 1400], 40), "triphase", *options)
        self.assertEqual(lines, 2)
        self.assertLessEqual(together, 1.02 * (short + long))
        # Placement changes no answer: the same records where everything fits.
        roomy, again = self.run_job(prompts, "device-only", "--kv-dtype", "bf16")
        self.assertEqual(roomy.returncode, 0, roomy.stderr)
        self.assertEqual(again.read_bytes(), text)
        # A pipe cannot be read twice: one plan holds all lines, or says which it cannot.
        piped = subprocess.run(
            [PROGRAM, "run", "--model", MODEL, "--prompts", "-", "--output", str(self.folder / "piped.jsonl"),
             "--ignore-eos", "--progress", "off", "--profile", "t4", *options],
            input=prompts.read_bytes(), capture_output=True, timeout=300,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder)})  # fmt: skip
        self.assertEqual(piped.returncode, 0, piped.stderr)
        self.assertEqual((self.folder / "piped.jsonl").read_bytes(), text)
        strict = subprocess.run(
            [PROGRAM, "run", "--model", MODEL, "--prompts", "-", "--output", str(self.folder / "strict.jsonl"), *options,
             "--plan", str(kept), "--plan-force", "--plan-strict"],
            input=prompts.read_bytes(), capture_output=True, timeout=300)  # fmt: skip
        self.assertEqual(strict.returncode, 4, strict.stderr)
        self.assertIn(b"expected one plan for all requests", strict.stderr)

    def test_dry_run_names_lines_that_would_fail(self):
        prompts = self.prompts("mixed", [20, 900, 30, 901], 8)
        # No room on the host for streamed layers, which would make some on the device.
        options = ("--device-memory", "17MiB", "--host-memory", "1MiB", "--batch-size", "4", "--attention", "quest",
                   "--kv-sparsity", "0.8")
        dry, output = self.run_job(prompts, "device-only", *options, "--dry-run")
        self.assertEqual(dry.returncode, 1, dry.stderr)
        self.assertRegex(dry.stderr, r"line 2: .*907.*\[E-MEM-LINE\]")
        self.assertRegex(dry.stderr, r"line 4: .*908.*\[E-MEM-LINE\]")
        self.assertIn("2 of 4 lines would become error records", dry.stderr)
        self.assertIn("hint: raise --device-memory or --host-memory, or lower --batch-size [E-MEM-LINE]", dry.stderr)
        self.assertFalse(output.exists())
        done, output = self.run_job(prompts, "device-only", *options)
        failed = [json.loads(line).get("error", {}).get("code") for line in output.read_text().splitlines()]
        self.assertEqual(failed, [None, "E-MEM-LINE", None, "E-MEM-LINE"])

    # What a step reads on the host and computes takes the device's room: less of it with a smaller chunk.
    def test_a_long_line_runs_in_smaller_chunks(self):
        prompts = self.prompts("long", [20, 700], 30)
        for policy in ("triphase", "vllm"):
            with self.subTest(policy):
                tight = ("--device-memory", "10MiB", "--kv-dtype", "bf16")
                given, _ = self.run_job(prompts, policy, *tight, "--prefill-chunk", "256", "--dry-run")
                self.assertEqual(given.returncode, 1, given.stderr)
                done, output = self.run_job(prompts, policy, *tight)
                self.assertEqual(done.returncode, 0, done.stderr)
                text = output.read_bytes()
                self.assertRegex(done.stderr, "wait for the others to end.*\n.*prefill chunk (128|64|32) tokens")
                done, output = self.run_job(prompts, policy, "--kv-dtype", "bf16")
                self.assertEqual(output.read_bytes(), text)

    def test_a_line_without_room_names_the_budgets_that_were_given(self):
        prompts = self.prompts("budgets", [20, 900], 8)
        budgets = ["--device-memory", "14MiB", "--host-memory", "2MiB"]
        less, _ = self.run_job(prompts, "triphase", *budgets, "--dry-run")
        self.assertIn("hint: raise --device-memory or --host-memory [E-MEM-LINE]", less.stderr)
        less, _ = self.run_job(prompts, "triphase", *budgets, "--device-kv-memory", "8MiB", "--dry-run")
        self.assertIn("hint: raise --device-memory, --device-kv-memory or --host-memory [E-MEM-LINE]", less.stderr)

    # The device alone, as a plan: stored, followed by the run that goes on, and told.
    def test_a_plan_may_be_to_stay_on_the_device(self):
        prompts = self.prompts("stay", [17] * 12, 200)
        options = ("--device-memory", "21MiB", "--kv-dtype", "bf16", "--emulate-link", "50MB/s")
        done, output = self.run_job(prompts, "triphase", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
        self.assertEqual(plan["schedule"]["kind"], "device")
        self.assertEqual(summary["moved_bytes"]["to_host"], 0)
        self.assertIn("all KV stays on the device", done.stderr)
        text = output.read_bytes()
        lines = text.splitlines(keepends=True)
        self.assertEqual(len(lines), 12)
        kept = self.folder / "kept.json"
        kept.write_text(json.dumps(plan))
        given, again = self.run_job(prompts, "triphase", *options[:2], "--plan", str(kept), "--plan-force")
        self.assertEqual(given.returncode, 0, given.stderr)
        self.assertEqual(again.read_bytes(), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
