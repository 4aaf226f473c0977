#!/usr/bin/env python3
"""The commands around jobs on the emulated GPU: the CPU's answers but for rounding, and refusals in words.

    gpu_commands_test.py TRIPHASE_EMULATED          (unittest options may follow)

Standard library only. The model is a small config of random weights with a shipped model's tokenizer.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
EMULATED = os.path.abspath(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHIPPED = ROOT / "models" / "shipped"
PARITY = ROOT / "tests" / "fixtures" / "parity"
GPU = "cuda:emulated"
# Learned positions, parallel residuals, sliding windows, one KV head, biases; F32 and BF16 weights; norms of heads, of
# whole queries and keys, of what branches give; layers that rotate nothing or by angles of their own; experts, one or
# several for each token, and in some layers alone; attention sinks, biases of experts.
FIXTURES = ("opt-350m", "neox-parallel", "mistral-window", "gemma-mqa", "qwen2-bf16", "qwen3-window-biases",
            "smollm3-tied", "olmo3-window-yarn", "phi3-longrope-partial", "glm4-norms", "falcon-groups", "gpt2-tied",
            "gemma2-caps", "gemma3-local", "mixtral-experts", "mixtral-window-bf16", "qwen3-moe-experts", "qwen3-moe-mixed",
            "gptoss-windows", "gptoss-mxfp4")


def shape(**other):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "vocab_size": 2048, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "bfloat16", **other}  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class GpuCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.model = cls.folder / "model"
        cls.model.mkdir()
        for name in ("tokenizer.model", "tokenizer_config.json"):
            shutil.copy(SHIPPED / "triphase-gqa" / name, cls.model)
        (cls.model / "config.json").write_text(json.dumps(shape()))
        texts = [line["prompt"] for line in lines(SHIPPED / "prompts.jsonl")]
        (cls.folder / "text.txt").write_text(" ".join(texts)[:400])
        (cls.folder / "context.txt").write_text(" ".join(texts)[:280])
        with (cls.folder / "prompts.jsonl").open("w") as out:
            for line in range(3):
                tokens = [3 + (line * 37 + at * 11 + at * at) % 60 for at in range(12 + 13 * line)]
                print(json.dumps({"prompt_tokens": tokens}), file=out)

    def config(self, **other):
        path = self.folder / "config.json"
        path.write_text(json.dumps(shape(**other)))
        return path

    def triphase(self, *arguments, device=GPU, code=0, machine="schedule=5"):
        command = [EMULATED, *map(str, arguments), "--device", device]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=self.folder,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"),
                                   "TRIPHASE_EMULATED": machine})  # fmt: skip
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        return done

    def run_job(self, model, *extra, device=GPU, code=0, tokens=5):
        random = () if pathlib.Path(model).parent == PARITY else ("--random-weights",)
        done = self.triphase("run", "--model", model, "--prompts", "prompts.jsonl", "--output", "out.jsonl",
                             "--overwrite", "--progress", "off", "--ignore-eos", "--max-tokens", tokens, *random,
                             *extra, device=device, code=code)
        return done.stderr if code else lines(self.folder / "out.jsonl")

    def summary(self):
        return json.loads((self.folder / "out.jsonl.summary.json").read_text())

    def same_tokens(self, model, *extra, delta=0.1):
        """Log-probabilities of both devices beside each other, as long as they choose the same tokens."""
        options = ("--temperature", "0", "--logprobs", "2", *extra)
        ours = self.run_job(model, *options)
        theirs = self.run_job(model, *options, device="cpu")
        compared = 0
        for one, other in zip(ours, theirs, strict=True):
            for token, expected in zip(one["logprobs"], other["logprobs"], strict=True):
                if token["token"] != expected["token"]:
                    first, second = (logprob for _, logprob in expected["top"][:2])
                    self.assertLess(first - second, 2 * delta)
                    break
                self.assertAlmostEqual(token["logprob"], expected["logprob"], delta=delta)
                compared += 1
        self.assertGreater(compared, 0)

    def test_a_setting_that_does_not_exist(self):
        for machine, said in (("schedule=1,colour=2", "colour, expected counts, driver, fail-allocation"),
                              ("schedule", "schedule, expected NAME=VALUE"),
                              ("memory=much", "memory=much, expected a number")):  # fmt: skip
            done = self.triphase("run", "--model", self.config(), "--random-weights", "--prompts", "prompts.jsonl",
                                 "--output", "refused.jsonl", code=2, machine=machine)  # fmt: skip
            self.assertIn(f"TRIPHASE_EMULATED: {said}", done.stderr)

    def test_models_of_every_kind(self):
        for name in FIXTURES:
            with self.subTest(model=name):
                self.same_tokens(PARITY / name)
        for heads in ({"head_dim": 80}, {"head_dim": 96, "num_key_value_heads": 4}, {"head_dim": 6}):
            with self.subTest(**heads):
                self.same_tokens(self.config(**heads))
        self.same_tokens(self.config(torch_dtype="float32"))
        self.assertEqual(self.summary()["model"]["kv_dtype"], "fp32")  # the CPU's, which came last
        self.run_job(self.config(torch_dtype="float32"), tokens=1)
        self.assertEqual(self.summary()["model"]["kv_dtype"], "fp16")

    def test_soft_caps_go_with_dense_attention(self):
        for device in ("cpu", GPU):
            refused = self.run_job(PARITY / "gemma2-caps", "--attention", "swa", device=device, code=2)
            self.assertIn("--attention: swa with soft caps of a gemma2 model", refused)

    def test_attention_sinks(self):
        for method in ("sparq", "topk"):
            for device in ("cpu", GPU):
                refused = self.run_job(PARITY / "gptoss-windows", "--attention", method, device=device, code=2)
                self.assertIn(f"--attention: {method} with attention sinks of a gpt_oss model", refused)
        for method in ("swa", "h2o", "quest", "local"):
            with self.subTest(method=method):
                self.same_tokens(PARITY / "gptoss-mxfp4", "--attention", method)
        # Layers that cross the link bring theirs; attention on the host has them too.
        shares = ("--policy", "flexgen", "--host-memory", "64MiB", "--policy-option", "kv-share=0.25")
        alone = self.run_job(PARITY / "gptoss-mxfp4", "--policy", "device-only", device="cpu", tokens=12)
        for option in ("weight-share=0.5", "host-kv=cpu-attention"):
            policy = (*shares, "--policy-option", option)
            self.assertEqual(self.run_job(PARITY / "gptoss-mxfp4", *policy, device="cpu", tokens=12), alone)
            self.same_tokens(PARITY / "gptoss-mxfp4", *policy)

    def test_options_of_a_job(self):
        config = self.config()
        for extra in (("--batch-size", "1", "--prefill-chunk", "32"), ("--repetition-penalty", "1.3"),
                      ("--policy", "flexgen", "--policy-option=weight-share=0.5", "--host-memory", "64MiB",
                       "--trace", "trace.json")):  # fmt: skip
            with self.subTest(extra=extra):
                self.same_tokens(config, *extra)
        trace = json.loads((self.folder / "trace.json").read_text())
        self.assertTrue(any(event["name"] == "layer" for event in trace["traceEvents"]))
        # Streamed weights: on the CPU the device's memory is emulated, on a GPU it is not.
        streaming = ("--policy", "flexgen", "--policy-option=weight-share=0.5", "--host-memory", "64MiB")
        for device, emulated in (("cpu", ["device memory"]), (GPU, [])):
            self.run_job(config, *streaming, device=device)
            self.assertEqual(self.summary()["emulated"], emulated)
        draws = self.run_job(config, "--temperature", "0.8", "--top-p", "0.9", "--min-p", "0.01", "--seed", "4")
        again = self.run_job(config, "--temperature", "0.8", "--top-p", "0.9", "--min-p", "0.01", "--seed", "4",
                             "--batch-size", "2", tokens=5)
        for one, other in zip(draws, again, strict=True):
            self.assertEqual(one["tokens"][0], other["tokens"][0])

    def test_sparsity_by_divergence(self):
        found = {}
        for device in ("cpu", GPU):
            self.run_job(self.config(), "--attention", "swa", "--kv-sparsity", "auto", "--max-divergence", "1",
                         tokens=3, device=device)
            found[device] = self.summary()["attention"]["calibration"]
        self.assertEqual(found[GPU]["chosen"], found["cpu"]["chosen"])
        for one, other in zip(found[GPU]["tried"], found["cpu"]["tried"], strict=True):
            self.assertAlmostEqual(one["kl_divergence"], other["kl_divergence"], delta=0.1)

    def test_score(self):
        (self.folder / "requests.jsonl").write_text(
            json.dumps({"context_tokens": [1, 40, 41], "continuation_tokens": [50, 51, 52, 60]}) + "\n")
        scores = {}
        for device in ("cpu", GPU):
            self.triphase("score", "--model", self.model, "--random-weights", "--requests", "requests.jsonl",
                          "--output", "scores.jsonl", "--overwrite", device=device)
            scores[device] = lines(self.folder / "scores.jsonl")[0]["logprob"]
        self.assertAlmostEqual(scores[GPU], scores["cpu"], delta=0.1)

    def test_eval(self):
        common = ("eval", "--model", self.model, "--random-weights", "--data", "text.txt", "--samples", "1",
                  "--format", "json")
        window = ("--window", "40", "--prefill-len", "30")
        for task, extra, name, delta in (
            ("perplexity", window, "nats_per_token", 0.02),
            ("perplexity", (*window, "--attention", "swa,sparq", "--kv-sparsity", "0.5"), "nats_per_token", 0.1),
            ("attention", (*window, "--attention", "sparq,dense", "--kv-sparsity", "0.5"), "coverage", 0.02),
            ("needle", ("--lengths", "64", "--depths", "0.5", "--max-tokens", "4"), "needle", 0.0),
        ):
            with self.subTest(task=task, extra=extra):
                ours, theirs = (json.loads(self.triphase(*common, "--task", task, *extra, device=device).stdout)
                                for device in (GPU, "cpu"))
                self.assertEqual(len(ours), len(theirs))
                for one, other in zip(ours, theirs, strict=True):
                    self.assertAlmostEqual(one[name], other[name], delta=delta)

    def test_cluster_and_squeezed_attention(self):
        made = {}
        steps = ()
        for device in ("cpu", GPU):
            self.triphase("cluster", "--model", self.model, "--random-weights", "--context", "context.txt",
                          "--output", f"clusters-{device[:3]}", "--window", "12", "--centroids", "0.2",
                          "--coarse-centroids", "0.05", "--progress", "off", *steps, device=device)
            made[device] = json.loads((self.folder / f"clusters-{device[:3]}" / "clusters.json").read_text())
            # On the GPU in two steps: 3 rows of the window, then 9.
            steps = ("--prefill-chunk", str(made[device]["context"]["tokens"] - 9))
        for level in ("fine", "coarse"):
            self.assertEqual(made[GPU][level]["clusters"], made["cpu"][level]["clusters"])
            self.assertAlmostEqual(made[GPU][level]["threshold"], made["cpu"][level]["threshold"], delta=2e-3)
        # Thresholds of 0 keep every key: dense attention's tokens, by other kernels.
        fixed = ("--fixed-context", "clusters-cpu", "--temperature", "0")
        dense = self.run_job(self.model, *fixed)
        everything = self.run_job(self.model, *fixed, "--attention", "squeezed", "--attention-option",
                                  "squeezed.threshold=0", "--policy", "flexgen", "--policy-option=kv-share=0.3",
                                  "--host-memory", "64MiB")
        self.assertEqual([line["tokens"] for line in everything], [line["tokens"] for line in dense])
        # Two levels, with thresholds that leave some of the clusters, in prompts and in decoded rows.
        for extra in ((), ("--kv-dtype", "int8", "--kv-block", "32")):
            self.same_tokens(self.model, "--fixed-context", "clusters-cpu", "--attention", "squeezed",
                             "--attention-option", "squeezed.levels=2", "--attention-option",
                             "squeezed.threshold=0.018", *extra)
            expected = self.summary()["attention"]
            self.run_job(self.model, *fixed, "--attention", "squeezed", "--attention-option", "squeezed.levels=2",
                         "--attention-option", "squeezed.threshold=0.018", *extra)
            for name in ("tokens_attended_fraction", "prompt_tokens_attended_fraction"):
                attended = self.summary()["attention"][name]
                self.assertTrue(0.3 < attended < 0.95, attended)
                self.assertAlmostEqual(attended, expected[name], delta=0.02)

    def test_profile_and_prediction(self):
        for dtype, method in (("bfloat16", ""), ("float32", ""), ("bfloat16", "swa"), ("bfloat16", "sparq")):
            with self.subTest(dtype=dtype, method=method):
                # Without grouped queries SparQ keeps sums of V.
                config = self.config(torch_dtype=dtype, num_key_value_heads=4 if method else 2)
                attention = ("--attention", method, "--kv-sparsity", "0.5") if method else ()
                self.triphase("profile", "--model", config, "--output", "profile.json", "--time", "0.5s",
                              "--batch-size", "2", "--max-context", "96", *attention)
                profile = json.loads((self.folder / "profile.json").read_text())
                self.assertTrue(profile["device"]["name"].startswith(GPU), profile["device"])
                self.assertEqual(profile["link"], "the GPU's own")
                self.assertEqual([one["attention"] for one in profile.get("methods", [])], [method] if method else [])
                self.run_job(config, "--predict", "--profile", "profile.json", "--temperature", "0", *attention)
                self.assertGreater(self.summary()["prediction"]["seconds"]["decode"], 0)

    def test_a_model_larger_than_the_gpu_is_measured_and_streamed(self):
        # 79 MiB of weights, which two layers of the twelve stand for while the GPU is measured.
        config = self.config(hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=8,
                             num_key_value_heads=8, head_dim=64, vocab_size=300)  # fmt: skip
        job = ("run", "--model", config, "--random-weights", "--prompts", "prompts.jsonl", "--overwrite", "--progress",
               "off", "--max-tokens", "2", "--max-context", "64", "--batch-size", "1", "--host-memory", "256MiB")
        done = self.triphase(*job, "--output", "out.jsonl", machine="memory=86000000")
        self.assertRegex(done.stderr, r"measured with the weights of \d of 12 layers")
        self.assertIn("measured this machine", done.stderr)
        self.assertNotIn("warning", done.stderr)
        self.assertRegex(done.stderr, r"weights of \d+ of 12 layers streamed")
        # Almost all of the GPU is in use, what its operations keep included.
        self.assertGreater(self.summary()["peak_bytes"]["device"], 70_000_000)
        self.assertNotIn("error", "".join(map(str, lines(self.folder / "out.jsonl"))))

    def test_compare(self):
        self.triphase("compare", "--model", self.model, "--random-weights", "--prompts", "prompts.jsonl", "--output",
                      "report", "--policies", "device-only,flexgen", "--policy-option=flexgen.kv-share=0.3",
                      "--max-tokens", "3", "--host-memory", "64MiB", "--repeat", "1")
        self.assertIn(GPU, (self.folder / "report" / "index.html").read_text())
        for row in json.loads((self.folder / "report" / "compare.json").read_text()):
            # The device computes while the host waits, and it takes its time.
            self.assertGreater(row["compute_seconds"], 0)
            self.assertGreaterEqual(row["host_seconds"], 0)
            self.assertLess(row["host_seconds"], row["compute_seconds"])
        errors = self.triphase("compare", "--model", self.model, "--random-weights", "--prompts", "prompts.jsonl",
                               "--output", "other", device="cuda:7", code=5).stderr
        self.assertIn("[E-DEV-NONE]", errors)

    def test_bench(self):
        heads = ("--heads", "4", "--kv-heads", "2", "--head-dim", "32")
        effort = ("--samples", "5", "--seconds", "0.01s", "--format", "json")
        for name, cells in (("attention", ("--batch-size", "1", "--context", "33", "--queries", "1", *heads)),
                            ("gemm", ("--rows", "3", "--depth", "64", "--columns", "64")),
                            ("quantize", ("--batch-size", "2", "--kv-heads", "2", "--head-dim", "32")),
                            ("transfer", ("--bytes", "4KiB"))):  # fmt: skip
            with self.subTest(bench=name):
                rows = json.loads(self.triphase("bench", name, *cells, *effort).stdout)
                self.assertTrue(all(row["device"].startswith(GPU) for row in rows))
                self.assertGreater(len(rows), 0)
        errors = self.triphase("bench", "attention", "--context", "8,16", "--queries", "32,17", *heads, *effort,
                               code=2).stderr
        self.assertIn("--queries: 17, expected at most --context, 16", errors)

    def test_doctor_says_what_a_run_would_use(self):
        for device, words in ((GPU, "cuda:emulated (an emulated GPU, on the CPU)"), ("cpu", "cpu (")):
            checks = {check["check"]: check for check in
                      json.loads(self.triphase("doctor", "--format", "json", device=device).stdout)}
            self.assertIn(f"--device {device} is {words}", checks["device"]["text"])
            self.assertEqual(checks["device"]["result"], "ok")
        self.assertIn("[E-DEV-NONE]", self.triphase("doctor", device="cuda:7", code=5).stdout)

    def test_a_gpu_without_the_library_for_products(self):
        missing = "library=0,schedule=5"
        job = ("run", "--model", self.config(), "--random-weights", "--prompts", "prompts.jsonl", "--output",
               "products.jsonl", "--progress", "off", "--ignore-eos", "--max-tokens", "2")  # fmt: skip
        errors = self.triphase(*job, code=5, machine=missing).stderr
        self.assertEqual(errors.count("triphase: error:"), 1, errors)
        for words in ("cuBLASLt: ", "nvidia-cublas", "TRIPHASE_CUBLASLT", "--deterministic", "[E-DEV-LIBRARY]"):
            self.assertIn(words, errors)
        self.assertEqual(list(self.folder.glob("products.jsonl*")), [])
        self.triphase(*job, "--deterministic", machine=missing)
        self.triphase(*job, "--deterministic", "--overwrite", device="cpu")
        doctor = ("doctor", "--format", "json")
        for machine, code, result in (("library=1", 0, "ok"), (missing, 5, "fail")):
            checks = {check["check"]: check for check in
                      json.loads(self.triphase(*doctor, code=code, machine=machine).stdout)}
            self.assertEqual(checks["matrix products"]["result"], result)
        self.assertNotIn("matrix products", self.triphase(*doctor, device="cpu").stdout)

    def test_what_a_gpu_cannot_do_is_said_before_it_starts(self):
        grouped = self.config(num_attention_heads=16, num_key_value_heads=1, head_dim=8)
        for method in ("sparq", "topk"):
            errors = self.run_job(grouped, "--attention", method, "--kv-sparsity", "0.5", code=2)
            self.assertIn(f"--attention: {method} on a GPU, with 16 query heads for each KV head, expected at most 8; "
                          "hint: --attention dense, or --device cpu [E-CLI-CONFLICT]", errors)
        self.run_job(grouped)
        odd = self.config(head_dim=18)
        for method in ("swa", "sparq", "topk"):
            self.assertIn(f"--attention: {method} on a GPU, with heads of 18 channels, expected a multiple of 8 "
                          "channels; hint: --attention dense, or --device cpu",
                          self.run_job(odd, "--attention", method, code=2))
        self.run_job(odd)
        large = self.config(head_dim=264)
        self.assertIn("heads of up to 256 channels", self.run_job(large, code=2))
        profile = ("profile", "--model", "config.json", "--output", "none.json", "--time", "0.1s")
        self.assertIn("heads of up to 256 channels", self.triphase(*profile, code=2).stderr)
        self.config()
        for option in (("--emulate-link", "20GB/s"), ("--kv-dtype", "fp32")):
            for command in (profile, None):
                errors = (self.run_job("config.json", *option, code=2) if command is None
                          else self.triphase(*command, *option, code=2).stderr)
                self.assertIn(option[0], errors)
                self.assertIn("--device cpu", errors)
        self.assertFalse((self.folder / "none.json").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
