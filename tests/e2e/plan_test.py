#!/usr/bin/env python3
"""`triphase plan` and `triphase simulate` as users run them: files, formats, exit codes.

Usage: plan_test.py TRIPHASE
"""

import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
WORKLOAD = ["--model", "opt-13b", "--profile", "v100-32gb", "--kv-sparsity", "0.8"]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


class Plan(unittest.TestCase):
    def test_writes_a_plan_that_holds_its_budget(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "plan.json"
            done = run("plan", *WORKLOAD, "--output", str(output), "--explain")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Phase", done.stdout.replace("phase", "Phase"))
            self.assertIn("neighbour", done.stdout)
            plan = json.loads(output.read_text())
        self.assertEqual(plan["format"], "triphase-plan/1")
        self.assertLessEqual(plan["device_peak_bytes"], plan["budget"]["device_bytes"])
        self.assertLessEqual(plan["schedule"]["p1"], plan["schedule"]["p2"])
        self.assertEqual(sum(phase["steps"] for phase in plan["phases"]), 512)
        self.assertTrue(plan["profile"].startswith("xxh3:"))

    def test_refuses_what_fits_nowhere(self):
        done = run("plan", *WORKLOAD, "--device-memory", "1GiB", "--host-memory", "1GiB")
        self.assertEqual(done.returncode, 5)
        self.assertIn("E-PLAN-FIT", done.stderr)

    def test_refuses_a_profile_that_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = pathlib.Path(folder) / "profile.json"
            profile.write_text('{"format": "triphase-profile/7"}')
            done = run("plan", "--model", "opt-13b", "--profile", str(profile))
            self.assertEqual(done.returncode, 4)
            self.assertIn("format", done.stderr)
            self.assertIn("E-PLAN-PROFILE", done.stderr)
        self.assertEqual(run("plan", "--model", "opt-13b", "--profile", "h300").returncode, 4)


class Simulate(unittest.TestCase):
    def test_every_format_has_the_same_rows(self):
        arguments = ["simulate", *WORKLOAD, "--batch-size", "4,64", "--policies", "triphase,zero,vllm"]
        rows = json.loads(run(*arguments, "--format", "json").stdout)
        lines = [json.loads(line) for line in run(*arguments, "--format", "jsonl").stdout.splitlines()]
        table = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))
        self.assertEqual(rows, lines)
        self.assertEqual([row["policy"] for row in rows], ["triphase", "zero", "vllm"] * 2)
        self.assertEqual([row["policy"] for row in table], [row["policy"] for row in rows])
        self.assertEqual(len(run(*arguments, "--format", "md").stdout.splitlines()), 8)
        full = {row["policy"]: row for row in rows[3:]}
        self.assertIsNone(full["zero"]["tokens_per_second"])
        self.assertIn("--policy zero", full["zero"]["infeasible"])
        self.assertGreater(full["triphase"]["tokens_per_second"], full["vllm"]["tokens_per_second"])

    def test_names_an_unknown_policy(self):
        done = run("simulate", *WORKLOAD, "--policies", "triphase,belady")
        self.assertEqual(done.returncode, 2)
        self.assertIn("belady", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
