#!/usr/bin/env python3
"""`triphase profile`, `triphase plan` and `triphase simulate` as users run them: files, formats, exit codes.

Usage: plan_test.py TRIPHASE MODEL
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
MODEL = ""
WORKLOAD = ["--model", "opt-13b", "--profile", "v100-32gb", "--kv-sparsity", "0.8"]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300)


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

    def test_a_dash_names_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for command in (["plan", *WORKLOAD], ["profile", "--model", MODEL]):
                done = subprocess.run([PROGRAM, *command, "--output", "-"], capture_output=True, text=True, cwd=folder)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("--output: -, expected a file; hint: only run and score", done.stderr)
                self.assertEqual(list(pathlib.Path(folder).iterdir()), [])

    def test_says_where_fewer_requests_at_a_time_are_faster(self):
        def plan(device_memory):
            done = run("plan", "--model", "opt-30b", "--profile", "h200", "--batch-size", "64", "--host-memory",
                       "100GiB", "--device-memory", device_memory, "--attention", "dense")
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stderr

        self.assertRegex(plan("80GiB"), r"32 requests at a time would make \d+ tokens/s, all 64 together make \d+; "
                                        "triphase run and simulate weigh that")
        self.assertNotIn("at a time", plan("140GiB"))

    def test_sparq_needs_memory_for_its_transposed_keys(self):
        def longest_in_phase_i(attention):
            done = run("plan", *WORKLOAD, "--attention", attention, "--kv-dtype", "fp16",
                       "--batch-size", "12")
            self.assertEqual(done.returncode, 0, done.stderr)
            plan = json.loads(done.stdout)
            self.assertLessEqual(plan["device_peak_bytes"], plan["budget"]["device_bytes"])
            return plan["schedule"]["p1"]

        self.assertLess(longest_in_phase_i("sparq"), longest_in_phase_i("swa"))

    def test_recomputes_as_run_does(self):
        def beta(*options):
            done = run("plan", *WORKLOAD, "--batch-size", "64", "--miss-rate", "1", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["schedule"]["beta"]

        self.assertGreater(beta(), 0)
        self.assertEqual(beta("--recompute", "off"), 0)
        self.assertEqual(beta("--kv-dtype", "fp16"), 0)  # asks for no rounding
        self.assertGreater(beta("--kv-dtype", "fp16", "--recompute", "on"), 0)
        self.assertGreater(beta("--kv-dtype", "int8"), 0)

    def test_methods_choose_up_to_the_window_of_every_layer(self):
        workload = ("plan", "--model", "mistral-7b", "--profile", "a100-40gb", "--batch-size", "8", "--output-len", "512",
                    "--input-len")  # fmt: skip
        sparq = ("--attention", "sparq", "--kv-sparsity", "0.8")
        done = run(*workload, "4000", *sparq)
        self.assertEqual(done.returncode, 2)
        self.assertIn("4512 tokens together, expected at most 4096: every layer has a sliding window", done.stderr)
        seconds = {}
        for input_len, method in (("3000", sparq), ("3000", ()), ("9000", ()), ("20000", ())):
            done = run(*workload, input_len, *method)
            self.assertEqual(done.returncode, 0, done.stderr)
            seconds[input_len, method] = sum(phase["seconds"] for phase in json.loads(done.stdout)["phases"])
        self.assertLess(seconds["3000", sparq], seconds["3000", ()])
        self.assertAlmostEqual(seconds["9000", ()], seconds["20000", ()], places=9)  # no step attends more

    def test_takes_the_sparsities_of_run(self):
        for command in ("plan", "simulate"):
            done = run(command, *WORKLOAD[:-1], "0.999")
            self.assertEqual(done.returncode, 0, done.stderr)
            done = run(command, *WORKLOAD[:-1], "0.9991")
            self.assertEqual(done.returncode, 2)
            self.assertIn("0 to 0.999", done.stderr)

    def test_takes_the_budget_of_a_method_as_run_does(self):
        def attended(*options):
            done = run("plan", *WORKLOAD[:4], *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["workload"]["caching_ratio"]

        self.assertEqual(attended(), 1)
        self.assertEqual(attended("--attention", "sparq", "--kv-sparsity", "0"), 1)
        self.assertLess(attended("--attention", "sparq"), 1)

    def test_warns_of_lengths_beyond_the_context(self):
        for command in (["plan"], ["simulate", "--policies", "triphase"]):
            for output, warned in (("1024", False), ("1025", True)):
                done = run(*command, *WORKLOAD, "--batch-size", "1", "--input-len", "1024", "--output-len", output)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("the context of opt-13b is 2048, so that run refuses such lines" in done.stderr, warned)

    def test_refuses_what_fits_nowhere(self):
        done = run("plan", *WORKLOAD, "--device-memory", "1GiB", "--host-memory", "1GiB")
        self.assertEqual(done.returncode, 5)
        self.assertIn("E-PLAN-FIT", done.stderr)

    def test_streamed_weights_count_to_the_host_budget(self):
        for budget, code in (("1GiB", 5), ("20GiB", 0)):
            done = run("plan", *WORKLOAD, "--batch-size", "12", "--device-memory", "20GiB", "--host-memory", budget)
            self.assertEqual(done.returncode, code, done.stderr)
        plan = json.loads(done.stdout)
        self.assertGreater(plan["schedule"]["streamed_layers"], 0)
        self.assertLessEqual(plan["host_peak_bytes"], plan["budget"]["host_bytes"])

    def test_refuses_a_profile_that_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = pathlib.Path(folder) / "profile.json"
            profile.write_text('{"format": "triphase-profile/7"}')
            done = run("plan", "--model", "opt-13b", "--profile", str(profile))
            self.assertEqual(done.returncode, 4)
            self.assertIn("format", done.stderr)
            self.assertIn("E-PLAN-PROFILE", done.stderr)
        self.assertEqual(run("plan", "--model", "opt-13b", "--profile", "h300").returncode, 4)


class Profile(unittest.TestCase):
    def test_measures_a_model_for_plan_and_simulate(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = pathlib.Path(folder) / "profile.json"
            done = run("profile", "--model", MODEL, "--output", str(profile), "--time", "1s", "--threads", "1",
                       "--batch-size", "8", "--emulate-link", "2GB/s,1us", "--format", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            measured = json.loads(profile.read_text())
            rows = {row["table"]: row for row in json.loads(done.stdout)}
            self.assertEqual(set(rows), set(measured["tables"]))
            for row in rows.values():
                # One in each round; tests/unit/engine/profiler_test.cpp says where there are more.
                self.assertGreaterEqual(row["samples"] + row["outliers_dropped"], 3 * row["cells"])
                self.assertIsNotNone(row["rounds_apart_percent"])
            self.assertTrue(measured["measured"])
            self.assertTrue(measured["emulated"])
            self.assertIn("2 GB/s", measured["link"])
            workload = ["--model", MODEL, "--profile", str(profile), "--batch-size", "4", "--input-len", "64",
                        "--output-len", "64", "--device-memory", "64MiB", "--host-memory", "256MiB"]
            plan = run("plan", *workload)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            self.assertGreater(json.loads(plan.stdout)["tokens_per_second"], 0)
            simulated = run("simulate", *workload, "--policies", "triphase,accelerate", "--format", "json")
            self.assertEqual(simulated.returncode, 0, simulated.stderr)
            for row in json.loads(simulated.stdout):
                self.assertIsNone(row["infeasible"], row)
                self.assertGreater(row["tokens_per_second"], 0)
            other = run("plan", "--model", "opt-13b", "--profile", str(profile))
            self.assertEqual(other.returncode, 4)
            self.assertIn("E-PLAN-MODEL", other.stderr)
            self.assertIn("model.layers", other.stderr)

    def test_refuses_before_measuring(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = str(pathlib.Path(folder) / "none" / "profile.json")
            done = run("profile", "--model", MODEL, "--output", missing)
            self.assertEqual(done.returncode, 6)
            self.assertIn("E-IO-OPEN", done.stderr)
            self.assertEqual(run("profile", "--model", MODEL, "--output", folder).returncode, 2)
            self.assertEqual(run("profile", "--model", MODEL).returncode, 2)
            output = str(pathlib.Path(folder) / "profile.json")
            self.assertEqual(run("profile", "--model", "no-such-model", "--output", output).returncode, 3)
            bad = run("profile", "--model", MODEL, "--output", output, "--emulate-link", "fast")
            self.assertEqual(bad.returncode, 2)
            self.assertIn("--emulate-link", bad.stderr)


class Simulate(unittest.TestCase):
    def test_every_format_has_the_same_rows(self):
        arguments = ["simulate", *WORKLOAD, "--batch-size", "4,64", "--policies", "triphase,zero,vllm"]
        rows = json.loads(run(*arguments, "--format", "json").stdout)
        lines = [json.loads(line) for line in run(*arguments, "--format", "jsonl").stdout.splitlines()]
        table = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))
        self.assertEqual(rows, lines)
        self.assertEqual([row["policy"] for row in rows], ["triphase", "zero", "vllm"] * 2)
        self.assertEqual([row["policy"] for row in table], [row["policy"] for row in rows])
        shown = run(*arguments, "--format", "md").stdout.splitlines()
        self.assertEqual(len(shown), 2 + 8)
        self.assertEqual({len(line) for line in shown[2:]}, {len(shown[2])})  # aligned
        self.assertEqual(shown[2].count("|") - 1, 10)
        full = {row["policy"]: row for row in rows[3:]}
        self.assertIsNone(full["zero"]["tokens_per_second"])
        self.assertIn("--policy zero", full["zero"]["infeasible"])
        self.assertGreater(full["triphase"]["tokens_per_second"], full["vllm"]["tokens_per_second"])

    def test_a_choice_by_the_query_waits_for_its_tokens(self):
        def row(attention):
            done = run("simulate", *WORKLOAD, "--batch-size", "64", "--policies", "triphase", "--attention", attention,
                       "--format", "json")  # fmt: skip
            return json.loads(done.stdout)[0]

        ahead, later = row("swa"), row("quest")
        self.assertGreater(ahead["h2d_seconds"], 5)
        self.assertLess(ahead["seconds"], ahead["compute_seconds"] + 0.5 * ahead["h2d_seconds"])
        self.assertGreater(later["seconds"], later["compute_seconds"] + 0.9 * later["h2d_seconds"])

    def test_recomputes_as_run_does(self):
        def recomputed(*options):
            done = run("simulate", *WORKLOAD, "--batch-size", "64", "--policies", "triphase", "--miss-rate", "1",
                       "--kv-dtype", "fp16", "--format", "json", *options)  # fmt: skip
            return json.loads(done.stdout)[0]["recomputed_tokens"]

        self.assertEqual(recomputed(), 0)
        self.assertGreater(recomputed("--recompute", "on"), 0)

    def test_names_an_unknown_policy(self):
        done = run("simulate", *WORKLOAD, "--policies", "triphase,belady")
        self.assertEqual(done.returncode, 2)
        self.assertIn("belady", done.stderr)

    def test_policies_take_their_options(self):
        arguments = ["simulate", *WORKLOAD, "--policies", "zero,zero:2023,vllm", "--format", "json"]
        rows = json.loads(run(*arguments, "--policy-option", "zero:2023.mode=2023").stdout)
        self.assertEqual([(row["policy"], row["detail"]) for row in rows],
                         [("zero", ""), ("zero:2023", "mode=2023"), ("vllm", "")])
        self.assertIsNone(rows[0]["tokens_per_second"])
        self.assertGreater(rows[1]["host_seconds"], 0)
        for option, expected in (
            ("vllm.preemption=keep", "preemption as recompute or swap"),
            ("vllm.mode=2023", "NAME=VALUE with one of preemption"),
            ("flexgen.kv-share=1", "POLICY.NAME=VALUE with one of --policies"),
        ):
            with self.subTest(option=option):
                done = run(*arguments, "--policy-option", option)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(expected, done.stderr)
        # What a run refuses has no price.
        done = run(*arguments, "--policy-option", "zero:2023.mode=2023", "--kv-dtype", "int8")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--kv-dtype: int8 with --policy-option mode=2023", done.stderr)

    def test_refuses_repeats(self):
        for options in (("--policies", "zero,zero"), ("--policies", "zero", "--batch-size", "8,08")):
            done = run("simulate", *WORKLOAD, *options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("twice, expected each once", done.stderr)

    def test_fails_where_no_policy_can_run(self):
        arguments = ["simulate", *WORKLOAD, "--format", "json", "--device-memory", "500MiB", "--policies"]
        done = run(*arguments, "zero,vllm")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertEqual([row["tokens_per_second"] for row in json.loads(done.stdout)], [None, None])
        self.assertRegex(done.stderr, r"--policies: zero: .*, expected a policy that can run \[E-MEM-FIT\]")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    MODEL = sys.argv.pop(1)
    unittest.main()
