#!/usr/bin/env python3
"""`triphase run` with plans: made where the host is needed, kept, followed, and refused by name.

Usage: run_plan_test.py TRIPHASE MODEL PROMPTS
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from unfinished import forget_records  # noqa: E402

PROGRAM, MODEL, PROMPTS = sys.argv[1], sys.argv[2], sys.argv[3]
# Lines of up to 384 tokens, 12 together: more KV than 16 MiB hold beside the weights.
SMALL = ("--device-memory", "16MiB", "--host-memory", "256MiB", "--prefill-chunk", "64")


class RunPlan(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def command(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300,
                              env=self.environment)

    def run_job(self, name, *extra, threads="1", ending=0):
        output = self.folder / f"{name}.jsonl"
        done = self.command("run", "--model", MODEL, "--prompts", PROMPTS, "--output", str(output), "--max-context",
                            "384", "--batch-size", "12", "--max-tokens", "40", "--progress", "off", "--threads",
                            threads, *extra)
        # Lines longer than --max-context become error records: then a job ends with 1.
        self.assertIn(done.returncode, (ending,) if ending else (0, 1), done.stderr)
        if ending:
            self.assertFalse(output.exists())
            self.assertFalse(pathlib.Path(f"{output}.part").exists())
            return done
        summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
        return done, summary, output

    def cached(self):
        return sorted((self.folder / "cache").rglob("*.json"))

    # Weights that barely do not fit: large batches want more layers streamed, small ones fewer.
    def test_no_batch_that_is_asked_for_is_predicted_faster(self):
        prompts = self.folder / "shapes.jsonl"
        lines = [{"prompt_tokens": [2] * (32 + 37 * line % 400), "max_tokens": 64} for line in range(40)]
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for budget in ("1800MiB", "2300MiB", "2600MiB", "2750MiB"):
            seconds = {}
            for batch in ("", "1", "2", "4", "8", "16", "32"):
                done = self.command(
                    "run", "--model", "opt-1.3b", "--random-weights", "--prompts", str(prompts), "--output",
                    str(self.folder / "shapes.out.jsonl"), "--profile", "h100-80gb", "--plan-force", "--dry-run", "--predict",
                    "--device-memory", budget, "--host-memory", "4GiB", *(("--batch-size", batch) if batch else ()))  # fmt: skip
                found = re.search(r"steps, (\S+) s of prefill and (\S+) s of decode", done.stderr)
                if found:
                    seconds[batch] = float(found[1]) + float(found[2])
            self.assertGreater(len(seconds), 3, (budget, seconds))
            self.assertLess(seconds[""], 1.05 * min(seconds.values()), (budget, seconds))

    # Requests that get blocks as they grow, and make room for others where none is left.
    def test_on_demand_changes_no_answer(self):
        prompts = self.folder / "mixed.jsonl"
        lines = [{"prompt_tokens": [20 + (7 * line + 3 * token) % 1900 for token in range((8, 20, 60)[line % 3])],
                  "max_tokens": (100, 200)[line % 2]} for line in range(48)]
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def run(name, *extra):
            output = self.folder / f"{name}.jsonl"
            done = self.command("run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--threads",
                                "1", "--kv-dtype", "bf16", "--progress", "off", *extra)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stderr, output

        tight = ("--device-memory", "14MiB", "--host-memory", "8MiB", "--profile", "h100-80gb", "--plan-force",
                 "--batch-size", "16", "--emulate-link", "100MB/s")  # fmt: skip
        log, made = run("tight", *tight)
        self.assertIn("requests that find no room are preempted", log)
        summary = json.loads(pathlib.Path(f"{made}.summary.json").read_text())
        self.assertGreater(summary["placement"]["preemptions"], 5)
        self.assertIs(summary["placement"]["plan"]["on_demand"], True)
        tokens = summary["tokens"]
        self.assertEqual(tokens["prompt"] + tokens["shared_prompt"], sum(len(line["prompt_tokens"]) for line in lines))
        self.assertGreater(tokens["recomputed"], 0)
        plan = json.loads(pathlib.Path(f"{made}.plan.json").read_text())
        self.assertIs(plan["schedule"]["on_demand"], True)
        _, roomy = run("roomy")
        self.assertEqual(made.read_bytes(), roomy.read_bytes())
        # A job that goes on follows that plan.
        forget_records(made, 20)
        log, _ = run("tight", *tight, "--retry-failed")
        self.assertIn("requests that find no room are preempted", log)
        self.assertEqual(made.read_bytes(), roomy.read_bytes())

    # Prompts of one prefix, whose KV fits the device once: the plan leaves it there, and knows each step.
    def test_plans_know_what_prompts_share(self):
        prompts = self.folder / "prefix.jsonl"
        prefix = [20 + 7 * token % 1900 for token in range(320)]
        lines = [{"prompt_tokens": prefix + [20 + (7 * line + 3 * token) % 1900 for token in range(6 + line % 5)],
                  "max_tokens": 16 + line % 9} for line in range(24)]  # fmt: skip
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        output = self.folder / "prefix.out.jsonl"
        done = self.command("run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--device-memory",
                            "15MiB", "--host-memory", "64MiB", "--batch-size", "12", "--prefill-chunk", "64", "--ignore-eos",
                            "--kv-dtype", "bf16", "--profile", "h100-80gb", "--plan-force", "--predict", "--progress", "off",
                            "--threads", "1")  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all KV stays on the device", done.stderr)
        summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
        self.assertEqual(summary["prediction"]["steps"], summary["steps"])
        self.assertEqual(summary["moved_bytes"]["to_host"], 0)
        self.assertGreater(summary["tokens"]["shared_prompt"], 20 * 300)

    # INT8 has no such blocks, and nobody asked for it.
    def test_a_block_that_int8_does_not_have_chooses_another_type(self):
        done, summary, _ = self.run_job("odd", "--device-memory", "13MiB", "--host-memory", "256MiB", "--kv-block", "20",
                                        "--profile", "v100-16gb", "--plan-force")  # fmt: skip
        self.assertIn("KV bf16 in blocks of 20", done.stderr)
        self.assertGreater(summary["requests"]["succeeded"], 10)

    def profile_with_miss_rate(self, method):
        """A profile measured here, with the miss rate of `method` on lines that are long for it."""
        profile = self.folder / f"profile-{method}.json"
        prompts = self.folder / "long.jsonl"
        with open(prompts, "w", encoding="utf-8") as file:
            for line in range(16):
                tokens = [3 + line] + [(7 * token + line * token) % 400 + 5 for token in range(1, 150)]
                file.write(json.dumps({"prompt_tokens": tokens, "max_tokens": 100}) + "\n")
        done = self.command("profile", "--model", MODEL, "--output", str(profile), "--time", "0.5s", "--batch-size", "12",
                            "--max-context", "384", "--threads", "1", "--prompts", str(prompts), "--attention", method,
                            "--kv-sparsity", "0.8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"of {method} (", done.stderr)
        rates = json.loads(profile.read_text())["miss_rates"]
        self.assertEqual([rate["attention"] for rate in rates], [method])
        return profile, rates[0]["rate"]

    def test_the_profile_has_the_miss_rate_of_the_prompts(self):
        profile, low = self.profile_with_miss_rate("lm-infinite")
        # The control draws its tokens blindly in every step.
        high = self.profile_with_miss_rate("random")[1]
        self.assertLess(low, 0.1)
        self.assertGreater(high, 0.5)

        def planned(*options):
            done = self.command("plan", "--model", MODEL, "--profile", str(profile), "--kv-sparsity", "0.8", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["workload"]["miss_rate"], done.stderr

        self.assertEqual(planned("--attention", "lm-infinite")[0], low)
        self.assertEqual(planned("--attention", "lm-infinite", "--miss-rate", "0.5")[0], 0.5)
        rate, log = planned("--attention", "swa")
        self.assertEqual(rate, 0.25)
        self.assertIn("miss rate 0.25 is assumed", log)
        sparse = (*SMALL, "--profile", str(profile), "--attention", "lm-infinite", "--predict", "--kv-sparsity")
        done, summary, output = self.run_job("measured", *sparse, "0.8")
        plan = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        self.assertEqual(plan["workload"]["miss_rate"], low)
        self.assertEqual(summary["prediction"]["miss_rate"], low)
        self.assertEqual(done.stderr.count("miss rate"), 1, "said once")
        done, summary, _ = self.run_job("other", *sparse, "0.7")
        self.assertEqual(summary["prediction"]["miss_rate"], 0.25)
        self.assertIn("miss rate 0.25 is assumed", done.stderr)

    def test_the_profile_prices_choosing_tokens(self):
        profile = self.folder / "profile.json"
        sparse = ("--attention", "sparq", "--kv-sparsity", "0.8")
        done = self.command("profile", "--model", MODEL, "--output", str(profile), "--time", "1s", "--batch-size", "12",
                            "--max-context", "384", "--threads", "1", "--format", "json", *sparse)
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = json.loads(profile.read_text())
        self.assertNotIn("miss_rates", measured, "there were no prompts")
        (method,) = measured["methods"]
        self.assertEqual(method["attention"], "sparq")
        self.assertIn("sparq.rank=32", method["attention_options"])
        rows = {row["table"]: row for row in json.loads(done.stdout)}
        self.assertEqual(set(rows), {*measured["tables"], "choosing under sparq", "choosing_int8 under sparq"})
        # A second of choosing in every decode step, or nothing: what is planned, simulated and predicted follows.
        files = {}
        for seconds in (0, 1):
            for table in ("choosing", "choosing_int8"):
                method[table]["seconds"] = [[seconds] * len(row) for row in method[table]["seconds"]]
            files[seconds] = self.folder / f"profile-{seconds}.json"
            files[seconds].write_text(json.dumps(measured))
        workload = ("--model", MODEL, "--batch-size", "12", "--input-len", "256", "--output-len", "64")

        def planned(file, *options):
            done = self.command("plan", *workload, "--profile", str(file), *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["decode_seconds"], done.stderr

        self.assertAlmostEqual(planned(files[1], *sparse)[0] - planned(files[0], *sparse)[0], 64, delta=1)
        self.assertNotIn("choosing tokens is not charged", planned(profile, *sparse)[1])
        other = ("--attention", "quest", "--kv-sparsity", "0.8")
        uncharged, log = planned(files[1], *other)
        self.assertIn("choosing tokens is not charged: profile measured does not say what it costs under quest", log)
        self.assertEqual(uncharged, planned(profile, *other)[0])

        def simulated(file):
            done = self.command("simulate", *workload, "--profile", str(file), "--policies", "triphase,vllm", "--format",
                                "json", *sparse)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [row["compute_seconds"] for row in json.loads(done.stdout)]

        free, dear = simulated(files[0]), simulated(files[1])
        # A CPU computes one prompt a step: the last begins to decode 11 steps after the first.
        self.assertAlmostEqual(dear[0] - free[0], 63 + 11, delta=1)
        self.assertEqual(dear[1], free[1], "the baselines attend everything")
        predicted = []
        for seconds, file in files.items():
            done, summary, _ = self.run_job(f"run-{seconds}", "--profile", str(file), "--predict", *sparse)
            self.assertNotIn("choosing tokens is not charged", done.stderr)
            predicted.append(summary["prediction"]["seconds"]["decode"])
        self.assertGreater(predicted[1] - predicted[0], 39)
        done, _, _ = self.run_job("other", "--profile", str(profile), "--predict", *other)
        self.assertEqual(done.stderr.count("choosing tokens is not charged"), 1, "said once")

    def test_a_run_measures_its_own_method(self):
        for name, extra, methods in (("sinks", ("--attention", "lm-infinite"), ["lm-infinite"]), ("dense", (), [])):
            done, _, _ = self.run_job(name, *SMALL, *extra)
            self.assertIn("measured this machine in", done.stderr)
            self.assertNotIn("choosing tokens is not charged", done.stderr)
            newest = max(self.cached(), key=lambda path: path.stat().st_mtime_ns)
            self.assertEqual([one["attention"] for one in json.loads(newest.read_text()).get("methods", [])], methods)
        done, _, _ = self.run_job("again", *SMALL, "--attention", "lm-infinite")
        self.assertNotIn("measured this machine", done.stderr)
        self.assertEqual(len(self.cached()), 2)

    def test_refuses_to_measure_what_is_no_method(self):
        output = str(self.folder / "profile.json")
        for model, extra, expected in (
            (MODEL, ("--prompts", PROMPTS), "a sparse --attention"),
            (MODEL, ("--attention-option", "sparq.k=8"), "a sparse --attention"),
            (MODEL, ("--kv-sparsity", "0.8"), "a sparse --attention"),
            (MODEL, ("--attention", "squeezed"), "--fixed-context"),
            (MODEL, ("--prompts", PROMPTS, "--attention", "squeezed"), "--fixed-context"),
            ("llama-2-7b", ("--prompts", PROMPTS, "--attention", "swa"), "a model directory"),
        ):
            with self.subTest(extra=extra):
                done = self.command("profile", "--model", model, "--output", output, *extra)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(expected, done.stderr)

    def plan_file(self, threads=1, lengths=("340", "44"), memory="64MiB"):
        """A plan of `triphase plan` from a profile measured here."""
        profile = self.folder / f"profile-{threads}.json"
        if not profile.exists():
            done = self.command("profile", "--model", MODEL, "--output", str(profile), "--time", "0.5s",
                                "--batch-size", "12", "--max-context", "384", "--threads", str(threads))
            self.assertEqual(done.returncode, 0, done.stderr)
        plan = self.folder / "plan.json"
        done = self.command("plan", "--model", MODEL, "--profile", str(profile), "--output", str(plan), "--batch-size",
                            "12", "--input-len", lengths[0], "--output-len", lengths[1], "--recompute", "off",
                            "--device-memory", memory, "--host-memory", "256MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        return plan

    def test_a_job_that_fits_plans_nothing(self):
        done, summary, output = self.run_job("fits")
        self.assertIsNone(summary["placement"]["plan"])
        self.assertNotIn("measur", done.stderr)
        self.assertEqual(self.cached(), [])
        self.assertFalse(pathlib.Path(f"{output}.plan.json").exists())

    def test_a_plan_is_made_once_where_the_host_is_needed(self):
        done, summary, output = self.run_job("first", *SMALL)
        self.assertIn("measured this machine in", done.stderr)
        self.assertEqual(len(self.cached()), 1)
        stored = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        used = summary["placement"]["plan"]
        self.assertEqual(used["origin"], "made for this job")
        for field in ("p1", "p2", "alpha", "beta", "device_tokens", "window_tokens"):
            self.assertEqual(used[field], stored["schedule"][field])
        self.assertEqual(stored["budget"], {"device_bytes": 16 << 20, "host_bytes": 256 << 20})
        self.assertEqual(summary["model"]["kv_dtype"], stored["kv_dtype"])
        self.assertLessEqual(summary["peak_bytes"]["device"], 16 << 20)
        # Placement never changes the answer: the same numbers without a plan or a host. Whether the
        # plan recomputes KV, from hidden states, is for the machine's speed to say.
        _, _, alone = self.run_job("alone", "--policy", "device-only", "--kv-dtype", stored["kv_dtype"],
                                   "--cached-hidden-states", str(stored["schedule"]["input_tokens"]))
        self.assertEqual(output.read_bytes(), alone.read_bytes())
        # The next job finds the profile.
        done, _, _ = self.run_job("second", *SMALL)
        self.assertIn("profile of this machine", done.stderr)
        self.assertNotIn("measured this machine", done.stderr)
        # It holds for its link alone.
        done, _, _ = self.run_job("paced", *SMALL, "--emulate-link", "20GB/s")
        self.assertIn("measured this machine in", done.stderr)
        other = set(self.cached())
        self.assertEqual(len(other), 2)
        done, _, _ = self.run_job("again", *SMALL)
        self.assertNotIn("measured this machine", done.stderr)
        for path in other:
            if json.loads(path.read_text())["link"] != "memory copies":
                path.unlink()
        # A damaged one is measured again, with a warning.
        self.cached()[0].write_text("{")
        done, _, _ = self.run_job("third", *SMALL)
        self.assertIn("measuring again", done.stderr)
        self.assertEqual(json.loads(self.cached()[0].read_text())["format"], "triphase-profile/3")

    def test_a_resumed_job_follows_the_plan_it_began_with(self):
        _, _, output = self.run_job("resumed", *SMALL, "--order", "completed")
        whole = output.read_bytes()
        plan = pathlib.Path(f"{output}.plan.json")
        before = plan.read_bytes()
        forget_records(output, 5)
        shutil.rmtree(self.folder / "cache")
        done, summary, _ = self.run_job("resumed", *SMALL, "--order", "completed", "--retry-failed")
        self.assertNotIn("measured this machine", done.stderr)
        self.assertEqual(summary["placement"]["plan"]["origin"], str(plan))
        self.assertEqual(plan.read_bytes(), before)
        self.assertEqual(sorted(output.read_bytes().splitlines()), sorted(whole.splitlines()))

    def run_lines(self, name, lengths, *extra, memory=None, ending=0):
        """A job of prompts of these lengths. With 18 MiB, long ones have INT8 KV by the plan of a T4, on every machine."""
        prompts = self.folder / "lines.jsonl"
        prompts.write_text("".join(
            json.dumps({"prompt_tokens": [3 + line] + [(7 * at + line) % 400 + 5 for at in range(1, length)]}) + "\n"
            for line, length in enumerate(lengths)))
        output = self.folder / f"{name}.jsonl"
        budget = ("--device-memory", memory, "--profile", "t4") if memory else ()
        done = self.command("run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--max-tokens", "30",
                            "--threads", "1", "--progress", "off", *budget, *extra)
        self.assertEqual(done.returncode, ending, done.stderr)
        return done.stderr, json.loads(pathlib.Path(f"{output}.manifest.json").read_text()), output

    def test_a_resumed_job_keeps_its_numbers_with_other_memory(self):
        lengths = [300] * 12
        for name, begun, resumed, kv in (("roomy", None, "18MiB", "bf16"), ("tight", "18MiB", None, "int8 in blocks of 64 tokens"),
                                         ("recomputing", None, "14MiB", "bf16")):
            with self.subTest(name):
                _, manifest, output = self.run_lines(name, lengths, memory=begun)
                self.assertEqual(manifest["kv_dtype"], kv)
                whole = output.read_bytes()
                forget_records(output, 5)
                other, same = {"bf16": ("int8", "--kv-dtype bf16")}.get(kv, ("bf16", "--kv-dtype int8 --kv-block 64"))
                refusal, _, _ = self.run_lines(name, lengths, "--retry-failed", "--kv-dtype", other, ending=4)
                self.assertIn(f"hint: {same} goes on with it", refusal)
                _, kept, _ = self.run_lines(name, lengths, "--retry-failed", memory=resumed)
                self.assertEqual(kept["kv_dtype"], kv)
                self.assertEqual(kept["cached_hidden_states"], 0)
                self.assertEqual(output.read_bytes(), whole)

    def test_shards_with_plans_of_their_own_are_one_job(self):
        lengths = [300 if line % 3 == 1 else 20 for line in range(36)]
        _, _, whole = self.run_lines("whole", lengths)
        # With the lines of the second shard a plan would choose INT8, or recompute.
        for memory in ("18MiB", "14MiB"):
            with self.subTest(memory):
                shards = [self.run_lines(f"{memory}.{shard}", lengths, "--shard", f"{shard}/3", memory=memory)
                          for shard in range(3)]
                merged = self.folder / f"{memory}.jsonl"
                done = self.command("merge", *(str(output) for _, _, output in shards), "--output", str(merged))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(merged.read_bytes(), whole.read_bytes())
        # What is given holds for each of them.
        _, manifest, _ = self.run_lines("given", lengths, "--shard", "1/3", "--kv-dtype", "int8", memory="14MiB")
        self.assertEqual(manifest["kv_dtype"], "int8 in blocks of 64 tokens")
        self.assertEqual(manifest["cached_hidden_states"], 0)

    def test_a_dry_run_measures_nothing(self):
        done = self.command("run", "--model", MODEL, "--prompts", PROMPTS, "--output", str(self.folder / "dry.jsonl"),
                            "--max-context", "384", *SMALL, "--dry-run")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("8 of 24 lines would become error records", done.stderr)
        self.assertIn("no profile of this machine and model yet", done.stderr)
        self.assertEqual(self.cached(), [])

    def test_a_built_in_profile_plans_without_measuring(self):
        done, summary, _ = self.run_job("derived", *SMALL, "--profile", "t4")
        self.assertIn("derived from stated peaks", done.stderr)
        self.assertEqual(summary["placement"]["plan"]["profile"], "t4")
        self.assertEqual(self.cached(), [])

    def test_a_prediction_stands_beside_what_was_measured(self):
        prompts = self.folder / "tokens.jsonl"
        prompts.write_text("".join(
            json.dumps({"id": str(line), "prompt_tokens": [10 + line] + [40 + line * 3 + at for at in range(149)]}) + "\n"
            for line in range(8)))
        for policy, options, host in (("triphase", (), True), ("flexgen", ("kv-share=0.5",), True),
                                      ("flexgen", ("kv-share=0.5", "host-kv=cpu-attention"), True),
                                      ("accelerate", (), True), ("device-only", (), False)):
            with self.subTest(policy=policy, options=options):
                output = self.folder / f"predicted-{policy}-{len(options)}.jsonl"
                done = self.command("run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output),
                                    "--max-context", "200", "--batch-size", "4", "--max-tokens", "24", "--ignore-eos",
                                    "--prefill-chunk", "64", "--progress", "off", "--kv-dtype", "bf16", "--policy", policy, "--predict",
                                    "--profile", "t4", *(("--device-memory", "12MiB") if host else ()),
                                    *(f"--policy-option={option}" for option in options))
                self.assertEqual(done.returncode, 0, done.stderr)
                summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
                predicted = summary["prediction"]
                self.assertEqual(predicted["profile"], "t4")
                self.assertEqual(predicted["requests"], 8)
                self.assertEqual(predicted["steps"], summary["steps"])
                for way in ("to_device", "to_host"):
                    self.assertEqual(predicted["moved_bytes"][way], summary["moved_bytes"][way])
                self.assertEqual(predicted["moved_bytes"]["to_device"] > 0, host)
                self.assertGreater(predicted["seconds"]["prefill"], 0)
                self.assertGreater(predicted["seconds"]["decode"], 0)

    def test_attention_on_the_host_is_measured_and_predicted(self):
        _, summary, _ = self.run_job("delegate", *SMALL, "--policy", "flexgen", "--policy-option", "kv-share=0.5",
                                     "--policy-option", "host-kv=cpu-attention", "--kv-dtype", "bf16", "--predict")
        self.assertGreater(summary["host_attention"]["rows"], 0)
        predicted = summary["prediction"]
        self.assertEqual(predicted["profile"], "measured by a run")
        self.assertGreater(predicted["seconds"]["decode"], 0)
        (cached,) = self.cached()
        profile = json.loads(cached.read_text())
        table = profile["tables"]["host_attention"]
        self.assertEqual(len(table["seconds"]), len(table["batch"]))
        self.assertEqual(len(table["seconds"][0]), len(table["tokens_attended"]))
        # A profile of before, which does not know: the job runs, and why there is no prediction is said.
        del profile["tables"]["host_attention"]
        cached.write_text(json.dumps(profile))
        done, summary, _ = self.run_job("unpriced", *SMALL, "--policy", "flexgen", "--policy-option", "kv-share=0.5",
                                        "--policy-option", "host-kv=cpu-attention", "--kv-dtype", "bf16", "--predict")
        self.assertIsNone(summary["prediction"])
        self.assertIn("does not say what attention on the host costs", done.stderr)

    def test_a_profile_alone_goes_with_no_other_policy(self):
        done = self.command("run", "--model", MODEL, "--prompts", PROMPTS, "--output", str(self.folder / "no.jsonl"),
                            "--policy", "zero", "--profile", "t4")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("E-CLI-CONFLICT", done.stderr)

    def test_a_given_plan_is_followed(self):
        plan = self.plan_file()
        done, summary, output = self.run_job("given", "--plan", str(plan))
        used = summary["placement"]["plan"]
        wanted = json.loads(plan.read_text())
        self.assertEqual(used["origin"], str(plan))
        self.assertEqual(used["p1"], wanted["schedule"]["p1"])
        self.assertEqual(used["predicted_tokens_per_second"], wanted["tokens_per_second"])
        manifest = json.loads(pathlib.Path(f"{output}.manifest.json").read_text())
        self.assertTrue(manifest["plan_hash"].startswith("xxh3:"))
        self.assertFalse(pathlib.Path(f"{output}.plan.json").exists())
        self.assertEqual(self.cached(), [])
        self.assertIn("predicted", done.stderr)

    def test_a_plan_that_does_not_cover_the_job(self):
        plan = self.plan_file(lengths=("8", "8"))
        done = self.run_job("strict", "--plan", str(plan), "--plan-strict", ending=4)
        self.assertIn("E-PLAN-WORKLOAD", done.stderr)
        self.assertIn("requests of up to", done.stderr)
        done = self.run_job("shard", "--plan", str(plan), "--shard", "0/2", ending=4)
        self.assertIn("plan again with these lengths, for all shards", done.stderr)
        done, summary, _ = self.run_job("again", "--plan", str(plan), *SMALL)
        self.assertIn("planning again", done.stderr)
        self.assertEqual(summary["placement"]["plan"]["origin"], "made for this job")
        # The plan's budgets hold all the same.
        plan = self.plan_file(lengths=("8", "8"), memory="16MiB")
        done, summary, output = self.run_job("kept", "--plan", str(plan), "--prefill-chunk", "64")
        self.assertIn("planning again", done.stderr)
        stored = json.loads(pathlib.Path(f"{output}.plan.json").read_text())
        self.assertEqual(stored["budget"], {"device_bytes": 16 << 20, "host_bytes": 256 << 20})
        self.assertLessEqual(summary["peak_bytes"]["device"], 16 << 20)

    # Lines of one length or of many, in one plan or two, in batches that memory holds or not.
    def test_the_plan_of_a_job_covers_that_job(self):
        lengths = {"alike": [(60, 40)], "mixed": [(8, 40), (90, 8), (30, 100), (200, 60)],
                   "one long": [(20, 20)] * 23 + [(330, 50)]}  # fmt: skip
        for name, kinds in lengths.items():
            prompts = self.folder / "lengths.jsonl"
            requests = [kinds[line % len(kinds)] for line in range(24)]
            lines = [{"prompt_tokens": [20 + (7 * line + 3 * token) % 1900 for token in range(tokens)],
                      "max_tokens": most} for line, (tokens, most) in enumerate(requests)]
            prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
            for memory in ("12500KiB", "14MiB"):
                output = self.folder / "job.jsonl"
                job = ("run", "--model", MODEL, "--prompts", str(prompts), "--output", str(output), "--overwrite",
                       "--device-memory", memory, "--host-memory", "256MiB", "--batch-size", "12", "--prefill-chunk", "64",
                       "--plan-force", "--threads", "1", "--progress", "off")  # fmt: skip
                with self.subTest(name, memory=memory):
                    done = self.command(*job, "--profile", "v100-16gb")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    records = output.read_bytes()
                    plan = self.folder / "stored.json"
                    shutil.move(f"{output}.plan.json", plan)
                    done = self.command(*job, "--plan", str(plan), "--plan-strict")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(json.loads(pathlib.Path(f"{output}.summary.json").read_text())
                                     ["placement"]["plan"]["origin"], str(plan))  # fmt: skip
                    self.assertEqual(output.read_bytes(), records)

    def test_what_does_not_belong_here_is_refused(self):
        plan = self.plan_file(threads=2)
        done = self.run_job("machine", "--plan", str(plan), ending=4)
        self.assertIn("E-PLAN-MACHINE", done.stderr)
        self.assertIn("2 threads", done.stderr)
        self.run_job("forced", "--plan", str(plan), "--plan-force")
        done = self.run_job("budget", "--plan", str(plan), "--plan-force", "--device-memory", "1MiB", ending=5)
        self.assertIn("E-PLAN-FIT", done.stderr)
        self.assertIn("device_peak_bytes", done.stderr)
        self.assertIn("--device-memory", done.stderr)
        kv = {"bf16": "fp16"}.get(json.loads(plan.read_text())["kv_dtype"], "bf16")
        done = self.run_job("type", "--plan", str(plan), "--plan-force", "--kv-dtype", kv, ending=2)
        self.assertIn("--kv-dtype", done.stderr)
        other = self.folder / "other.json"
        self.assertEqual(self.command("plan", "--model", "opt-6.7b", "--output", str(other)).returncode, 0)
        done = self.run_job("model", "--plan", str(other), ending=4)
        self.assertIn("E-PLAN-MODEL", done.stderr)
        edited = json.loads(plan.read_text())
        edited["schedule"]["streamed_layers"] = 99
        other.write_text(json.dumps(edited))
        done = self.run_job("layers", "--plan", str(other), "--plan-force", ending=4)
        self.assertIn("schedule.streamed_layers: 99", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
