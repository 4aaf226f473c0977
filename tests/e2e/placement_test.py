#!/usr/bin/env python3
"""The same job under every placement policy and several budgets: one answer, budgets held.

Usage: placement_test.py TRIPHASE MODEL PROMPTS
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, MODEL, PROMPTS = sys.argv[1], sys.argv[2], sys.argv[3]
MIB = 1 << 20


class Placement(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_job(
        self, name: str, *extra: str, batch: str = "12", kv: str = "bf16", prompts: str = PROMPTS
    ) -> tuple[bytes, dict, subprocess.CompletedProcess]:
        output = Path(self.folder.name) / f"{name}.jsonl"
        command = [
            PROGRAM, "run", "--model", MODEL, "--prompts", prompts, "--output", str(output),
            "--max-context", "384", "--batch-size", batch, "--max-tokens", "40", "--progress", "off",
            # A plan may choose INT8 under auto; here every run has one type.
            "--kv-dtype", kv,
            *extra,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        summary = Path(f"{output}.summary.json")
        return (
            output.read_bytes() if output.exists() else b"",
            json.loads(summary.read_text()) if summary.exists() else {},
            done,
        )

    def test_every_policy_gives_the_same_file_within_its_budget(self) -> None:
        expected, summary, _ = self.run_job("all", "--policy", "device-only")
        self.assertTrue(summary["complete"])
        self.assertEqual(summary["moved_bytes"]["to_device"], 0)
        self.assertEqual(summary["moved_bytes"]["to_host"], 0)
        for number, (policy, options) in enumerate((
            ("triphase", ()),
            ("triphase", ("p1=0", "alpha=0.8", "window=8")),
            ("flexgen", ("kv-share=0.5", "weight-share=0.5")),
            ("flexgen", ("overlap=off",)),
            ("flexgen", ("kv-share=0.25", "host-kv=cpu-attention", "weight-share=1")),
            ("accelerate", ()),
            ("zero", ("mode=2023",)),
            ("vllm", ()),
            ("vllm", ("preemption=swap",)),
        )):
            with self.subTest(policy=policy, options=options):
                knobs = [f"--policy-option={option}" for option in options]
                text, summary, done = self.run_job(
                    f"{policy}{number}", "--policy", policy, "--device-memory", "16MiB",
                    "--host-memory", "256MiB", "--emulate-link", "5GB/s", "--prefill-chunk", "64",
                    *knobs,
                )  # fmt: skip
                self.assertEqual(text, expected, done.stderr)
                self.assertLessEqual(summary["peak_bytes"]["device"], 16 * MIB)
                self.assertLessEqual(summary["peak_bytes"].get("host", 0), 256 * MIB)
                self.assertIn("link", summary["emulated"])
                self.check_kinds(summary)
                if options or policy == "accelerate":
                    self.assertGreater(summary["moved_bytes"]["to_host"], 0)
        # Weights that do not fit are streamed, and the answer stays.
        text, summary, done = self.run_job("small", "--device-memory", "9MiB",
                                           "--prefill-chunk=16", batch="2")  # fmt: skip
        self.assertEqual(text, expected, done.stderr)
        self.assertIn("streamed", done.stderr)
        self.assertGreater(summary["moved_bytes"]["to_device"], MIB)
        self.assertGreater(summary["moved_bytes"]["to_device_by_kind"]["weights"], MIB)
        self.check_kinds(summary)
        self.assertLessEqual(summary["peak_bytes"]["device"], 9 * MIB)

    def test_a_prefix_that_waits_on_the_host_is_computed_once(self) -> None:
        prefix = [3 + token * 7 % 500 for token in range(256)]
        prompts = Path(self.folder.name, "prefix.jsonl")
        prompts.write_text("".join(
            json.dumps({"prompt_tokens": prefix + [600 + line, 700 + line], "max_tokens": 1 + line % 4}) + "\n"
            for line in range(16)
        ))  # fmt: skip
        job = {"batch": "4", "prompts": str(prompts)}
        expected, device, _ = self.run_job("device", "--policy", "device-only", **job)
        for policy, options in (
            ("triphase", ("p1=0", "alpha=0.9")),
            ("accelerate", ()),
            ("flexgen", ("kv-share=0",)),
            ("flexgen", ("kv-share=0", "host-kv=cpu-attention")),
            ("zero", ("mode=2023",)),
        ):
            with self.subTest(policy=policy, options=options):
                text, summary, done = self.run_job(
                    policy, "--policy", policy, "--host-memory", "256MiB", "--overwrite", "--device-memory", "15MiB",
                    *[f"--policy-option={option}" for option in options], **job,
                )  # fmt: skip
                self.assertEqual(text, expected, done.stderr)
                self.assertGreater(summary["moved_bytes"]["to_host"], 0)
                self.assertEqual(summary["tokens"], device["tokens"])

    def test_int8_answers_do_not_depend_on_the_policy(self) -> None:
        answers = {}
        for policy in ("device-only", "triphase", "vllm", "flexgen"):
            answers[policy], summary, done = self.run_job(f"int8-{policy}", "--policy", policy, kv="int8")
            self.assertTrue(summary["complete"], done.stderr)
        self.assertEqual(set(answers.values()), {answers["device-only"]})

    def check_kinds(self, summary: dict) -> None:
        moved = summary["moved_bytes"]
        self.assertEqual(sum(moved["to_device_by_kind"].values()), moved["to_device"])

    def test_sparse_methods_bring_only_what_they_attend(self) -> None:
        bytes_to_device = {}
        for method, options in (("dense", ()), ("swa", ("--kv-sparsity", "0.8"))):
            job = ("--attention", method, *options, "--policy", "accelerate", "--prefill-chunk",
                   "64", "--device-memory")  # fmt: skip
            text, summary, done = self.run_job(f"{method}-host", *job, "19150KiB",
                                               "--host-memory", "256MiB", batch="6")  # fmt: skip
            self.assertTrue(summary["complete"], done.stderr)
            self.check_kinds(summary)
            kinds = summary["moved_bytes"]["to_device_by_kind"]
            self.assertEqual(kinds["kv_tokens"] > 0, method == "swa")
            bytes_to_device[method] = summary["moved_bytes"]["to_device"]
        self.assertLess(bytes_to_device["swa"], 0.25 * bytes_to_device["dense"])

    # All KV is on the host, the recent tokens of a method too. Budgets of short lines are a few tokens.
    def test_predicted_bytes_of_sparse_methods_are_those_that_move(self) -> None:
        for method in ("local", "lm-infinite", "swa", "h2o", "sparq", "quest", "strided", "random", "topk"):
            with self.subTest(method=method):
                _, summary, done = self.run_job(
                    f"{method}-predicted", "--attention", method, "--kv-sparsity", "0.8", "--policy",
                    "flexgen", "--policy-option", "kv-share=0", "--predict", "--profile", "t4",
                    "--miss-rate", "1", "--token-cache", "0B")  # fmt: skip
                self.assertTrue(summary["complete"], done.stderr)
                predicted = summary["prediction"]["moved_bytes"]["to_device"]
                moved = summary["moved_bytes"]["to_device"]
                self.assertAlmostEqual(predicted / moved, 1, delta=0.3)

    def test_what_cannot_run_is_refused_by_name(self) -> None:
        _, _, done = self.run_job("zero", "--policy", "zero", "--device-memory", "12MiB")
        self.assertEqual(done.returncode, 5)
        self.assertIn("--policy zero keeps KV on the device", done.stderr)
        _, _, done = self.run_job("knob", "--policy", "vllm", "--policy-option", "p1=3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("NAME=VALUE with one of preemption", done.stderr)
        _, _, done = self.run_job("knob", "--policy", "vllm", "--policy-option", "preemption=keep")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("preemption as recompute or swap", done.stderr)
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(errors), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
