#!/usr/bin/env python3
"""Jobs on the emulated GPU: every policy and method, the same answers wherever KV lies, whatever order work runs in.

    gpu_jobs_test.py TRIPHASE_EMULATED TRIPHASE            what ctest runs (unittest options may follow)
    gpu_jobs_test.py TRIPHASE_EMULATED TRIPHASE --matrix   every method x policy x KV type x heads instead

Standard library only. The model is a config of random weights; prompts are token ids. That work runs in another order
is the emulated device's part (tests/emulated/emulated_device.h): 0 is lazy, 1 eager, others are random.
"""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
EMULATED, PROGRAM = sys.argv[1], sys.argv[2]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHIPPED = ROOT / "models" / "shipped"
LENGTHS = (70, 33, 100, 5, 64, 90)
LONGEST = "200"
METHODS = ("local", "strided", "lm-infinite", "swa", "h2o", "sparq", "topk", "quest", "random")
# Options that make KV, weights or hidden states cross the link in these small jobs, by policy.
TIGHT = ("--host-memory", "64MiB", "--device-kv-memory", "260KiB", "--max-context", LONGEST)


def options(*pairs):
    return [f"--policy-option={pair}" for pair in pairs]


POLICIES = {
    "triphase": ("--policy", "triphase", *options("p1=2", "alpha=0.8"), *TIGHT),
    "flexgen": ("--policy", "flexgen", *options("kv-share=0.25", "weight-share=0.5"), "--host-memory", "64MiB"),
    "flexgen on the CPU": ("--policy", "flexgen", *options("kv-share=0.25", "host-kv=cpu-attention"), "--host-memory",
                           "64MiB"),
    "vllm": ("--policy", "vllm", *options("preemption=swap"), *TIGHT),
    "accelerate": ("--policy", "accelerate", "--host-memory", "64MiB", "--max-context", LONGEST),
    "zero": ("--policy", "zero", "--host-memory", "64MiB", "--max-context", LONGEST),
}
RECOMPUTE = options("p1=2", "p2=6", "alpha=0.8", "beta=0.6", "window=8", "input-tokens=96")


def config(kv_heads):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": kv_heads, "head_dim": 32,
            "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


class Jobs:
    """A folder with models and prompts, and the jobs that are run over them."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for kv_heads in (2, 4):
            (self.folder / f"heads{kv_heads}.json").write_text(json.dumps(config(kv_heads)))
        with (self.folder / "prompts.jsonl").open("w") as out:
            for line, length in enumerate(LENGTHS):
                tokens = [3 + (line * 37 + at * 11 + at * at) % 290 for at in range(length)]
                print(json.dumps({"id": str(line), "prompt_tokens": tokens}), file=out)

    def command(self, name, *extra, kv_heads=2, tokens=24, device="cuda:emulated"):
        return [EMULATED, "run", "--model", str(self.folder / f"heads{kv_heads}.json"), "--random-weights",
                "--weights-dtype", "bf16", "--prompts", str(self.folder / "prompts.jsonl"), "--max-tokens", str(tokens),
                "--temperature", "0", "--ignore-eos", "--batch-size", "4", "--progress", "off", "--device", device,
                "--output", str(self.folder / f"{name}.jsonl"), *extra]  # fmt: skip

    def environment(self, machine):
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "TRIPHASE_EMULATED": machine}

    def run(self, name, *extra, machine="schedule=0", ending=0, **job):
        """Summary and answers of a job that ends with this exit code."""
        output = self.folder / f"{name}.jsonl"
        done = subprocess.run(self.command(name, *extra, **job), capture_output=True, text=True, timeout=600,
                              env=self.environment(machine))
        if done.returncode != ending:
            raise AssertionError(f"{name} ({machine}): exit {done.returncode}\n{done.stderr[-2000:]}")
        if ending != 0:
            return done.stderr, None
        return json.loads(pathlib.Path(f"{output}.summary.json").read_text()), output.read_bytes()


class GpuJobs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.jobs = Jobs(scratch.name)

    def test_policies_give_the_same_answers_in_any_order(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        for number, (name, policy) in enumerate(POLICIES.items()):
            with self.subTest(policy=name):
                summary, answers = self.jobs.run("job", *policy, "--overwrite", machine=f"schedule={number % 3 * 5}")
                self.assertEqual(answers, expected)
                if name in ("triphase", "flexgen", "flexgen on the CPU"):
                    self.assertGreater(summary["moved_bytes"]["to_device"], 0)
                    self.assertGreater(summary["moved_bytes"]["to_host"], 0)
        # Where work elsewhere comes first: what a missing event would show.
        _, answers = self.jobs.run("job", *POLICIES["triphase"], "--overwrite", machine="schedule=1")
        self.assertEqual(answers, expected)

    def test_preempted_requests_are_swapped_and_go_on(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only", tokens=60)
        summary, answers = self.jobs.run("job", *POLICIES["vllm"], tokens=60, machine="schedule=9")
        self.assertEqual(answers, expected)
        self.assertGreater(summary["moved_bytes"]["to_device_by_kind"]["kv_reloads"], 0)

    def test_methods_choose_the_same_tokens_wherever_kv_lies(self):
        for number, method in enumerate(METHODS):
            attention = ("--attention", method, "--kv-sparsity", "0.6", "--overwrite")
            policy = list(POLICIES["triphase"])
            if method == "sparq":
                policy[policy.index("260KiB")] = "900KiB"  # K^T
            with self.subTest(method=method):
                _, expected = self.jobs.run("reference", "--policy", "device-only", *attention, tokens=16)
                summary, answers = self.jobs.run("job", *policy, *attention, tokens=16,
                                                 machine=f"schedule={number % 4}")
                self.assertEqual(answers, expected)
                self.assertGreater(summary["moved_bytes"]["to_device"], 0)

    def test_int8_kv(self):
        int8 = ("--kv-dtype", "int8", "--kv-block", "32")
        _, expected = self.jobs.run("reference", "--policy", "device-only", *int8)
        policy = list(POLICIES["triphase"])
        policy[policy.index("260KiB")] = "600KiB"  # partial blocks lie unquantized on the device
        summary, answers = self.jobs.run("job", *policy, *int8, machine="schedule=3")
        self.assertEqual(answers, expected)
        self.assertGreater(summary["moved_bytes"]["to_device"], 0)

    def test_recomputed_kv_is_the_kv_that_was_stored(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only", "--layer-inputs", "96", tokens=60)
        summary, answers = self.jobs.run("job", "--policy", "triphase", *RECOMPUTE, *TIGHT, "--kv-dtype", "bf16",
                                         tokens=60, machine="schedule=6")
        self.assertEqual(answers, expected)
        self.assertGreater(summary["layer_inputs"]["recomputed_tokens"], 0)

    def test_answers_are_the_cpus_but_for_close_calls(self):
        lines = [json.loads(line) for line in (SHIPPED / "prompts.jsonl").read_text().splitlines()[:4]]
        prompts = self.jobs.folder / "stories.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": line["prompt"]}) + "\n" for line in lines))
        for model, kv in (("triphase-gqa", "bf16"), ("triphase-mha", "int8")):
            answers = {}
            for device in ("cpu", "cuda:emulated"):
                output = self.jobs.folder / f"{device}-{kv}.jsonl"
                done = subprocess.run([EMULATED, "run", "--model", str(SHIPPED / model), "--prompts", str(prompts),
                                       "--max-tokens", "16", "--temperature", "0", "--logprobs", "2", "--kv-dtype", kv,
                                       "--policy", "device-only", "--device", device, "--output", str(output)],
                                      capture_output=True, text=True, timeout=600)  # fmt: skip
                self.assertEqual(done.returncode, 0, done.stderr)
                answers[device] = [json.loads(line) for line in output.read_text().splitlines()]
            for ours, theirs in zip(answers["cuda:emulated"], answers["cpu"], strict=True):
                self.compare(ours, theirs)

    def compare(self, ours, theirs):
        for at, (token, expected) in enumerate(zip(ours["logprobs"], theirs["logprobs"], strict=True)):
            first, second = (logprob for _, logprob in expected["top"][:2])
            if token["token"] != expected["token"]:
                self.assertLess(first - second, 0.2, f"line {theirs['index']}, token {at}")
                return
            self.assertAlmostEqual(token["logprob"], expected["logprob"], delta=0.2)

    def test_a_killed_or_failed_job_resumes(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only", tokens=60)
        policy = POLICIES["flexgen"]
        process = subprocess.Popen(self.jobs.command("killed", *policy, tokens=60), stderr=subprocess.DEVNULL,
                                   env=self.jobs.environment("schedule=2"))
        part = self.jobs.folder / "killed.jsonl.part"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if part.exists() and part.stat().st_size > 0:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, answers = self.jobs.run("killed", *policy, tokens=60)
        self.assertEqual(answers, expected)
        for fault in ("fail-launch=3000", "fail-copy=1500"):
            with self.subTest(fault=fault):
                errors, _ = self.jobs.run("failed", *policy, "--overwrite", tokens=60, machine=fault, ending=7)
                self.assertIn("[E-DEV-CUDA]", errors)
                _, answers = self.jobs.run("failed", *policy, tokens=60)
                self.assertEqual(answers, expected)

    def test_a_decode_step_asks_little_of_the_device(self):
        """Allocations, launches, copies and waits of a step in which nothing begins or ends: the table of docs/gpu.md."""
        allowed = {}
        for line in (ROOT / "docs" / "gpu.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 5 and cells[1].isdigit():
                for method in cells[0].split(", "):
                    allowed[method] = [int(cell) for cell in cells[1:]]
        self.assertEqual(set(allowed), {"dense", *METHODS})
        prompts = self.jobs.folder / "prompts.jsonl"
        prompts.write_text("".join(prompts.read_text().splitlines(keepends=True)[:2]))
        for method, limits in allowed.items():
            attention = () if method == "dense" else ("--attention", method, "--kv-sparsity", "0.6")
            counts = []
            for tokens in (12, 20):  # neither closes a block of 32
                file = self.jobs.folder / "counts.json"
                self.jobs.run("job", "--policy", "device-only", "--overwrite", *attention, tokens=tokens,
                              machine=f"counts={file}")
                counts.append(json.loads(file.read_text()))
            step = [(counts[1][key] - counts[0][key]) / 8 for key in ("launches", "uploads", "downloads", "waits")]
            with self.subTest(method=method, step=step):
                self.assertLess(counts[1]["allocations"] - counts[0]["allocations"], 8)
                for count, limit in zip(step, limits, strict=True):
                    self.assertLessEqual(count, limit)

    def test_refused_memory(self):
        errors, _ = self.jobs.run("small", "--policy", "device-only", machine="memory=30000000", ending=5)
        self.assertIn("device memory", errors)
        errors, _ = self.jobs.run("refused", "--policy", "device-only", machine="fail-allocation=8", ending=5)
        self.assertIn("[E-MEM-ALLOC]", errors)
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        _, answers = self.jobs.run("unpinned", *POLICIES["flexgen"], machine="fail-pin=1,schedule=5")
        self.assertEqual(answers, expected)

    def test_devices_that_are_not_there(self):
        # Builds without CUDA do not know how GPUs are called.
        for device, endings in (("cuda:emulated", (2, 5)), ("gpu", (2,)), ("cuda:77", (5,))):
            command = self.jobs.command("none", device=device)
            done = subprocess.run([PROGRAM, *command[1:]], capture_output=True, text=True, timeout=60)
            self.assertIn(done.returncode, endings, done.stderr)
            self.assertIn(f"--device: {device}" if device != "cuda:77" else "[E-DEV-NONE]", done.stderr)


def matrix():
    """Every method under every policy, KV type and kind of heads: prints what differs, and the counts."""
    wrong = total = moved = 0
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(folder)
        for kv_heads, kv, method in itertools.product((2, 4), ("fp16", "bf16", "int8"), ("dense", *METHODS)):
            common = ["--overwrite", "--kv-dtype", kv, "--kv-block", "32"]
            if method != "dense":
                common += ["--attention", method, "--kv-sparsity", "0.6"]
            _, expected = jobs.run("reference", "--policy", "device-only", *common, kv_heads=kv_heads, tokens=8)
            for number, (name, policy) in enumerate(POLICIES.items()):
                if name == "flexgen on the CPU" and (kv == "int8" or method != "dense"):
                    continue
                policy = ["2MiB" if option == "260KiB" and kv == "int8" else option for option in policy]
                policy = ["800KiB" if option == "260KiB" else option for option in policy]
                total += 1
                try:
                    summary, answers = jobs.run("job", *policy, *common, kv_heads=kv_heads, tokens=8,
                                                machine=f"schedule={total % 7}")
                    moved += summary["moved_bytes"]["to_device"] > 0
                    if answers == expected:
                        continue
                    problem = "other answers"
                except AssertionError as error:
                    problem = str(error)
                wrong += 1
                print(f"heads {kv_heads}, {kv}, {method}, {name}: {problem}", flush=True)
    print(f"matrix: {total} jobs, {moved} of them over the link, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--matrix" in sys.argv:
        sys.exit(matrix())
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
