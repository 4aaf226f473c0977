#!/usr/bin/env python3
"""`triphase eval` with the shipped model: scores that mean something, and refusals.

    eval_test.py TRIPHASE          (unittest options may follow)

Standard library only. The text is the repository's own documentation.
"""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("TRIPHASE_SOURCE_DIR", pathlib.Path(__file__).resolve().parent.parent.parent))
MODEL = str(ROOT / "models" / "shipped" / "triphase-mha")
QUESTIONS = pathlib.Path(__file__).resolve().parent.parent / "lm_eval" / "task" / "questions.jsonl"
PROGRAM = ""


class EvalTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-eval-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        text = "".join((ROOT / "docs" / name).read_text() for name in ("prompts.md", "eval.md", "scoring.md"))
        (self.folder / "text.txt").write_text(text, encoding="utf-8")

    def run_eval(self, task, data, *extra, code=0):
        result = subprocess.run([PROGRAM, "eval", "--model", MODEL, "--task", task, "--data", str(data), *extra],
                                cwd=self.folder, capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def rows(self, task, data, *extra):
        return json.loads(self.run_eval(task, data, "--format", "json", *extra).stdout)

    def test_perplexity_is_the_same_in_any_batch_and_by_score(self):
        row = self.rows("perplexity", "text.txt", "--window", "128", "--prefill-len", "0")[0]
        self.assertEqual(row, self.rows("perplexity", "text.txt", "--window", "128", "--prefill-len", "0",
                                        "--batch-size", "3", "--prefill-chunk", "7")[0])
        self.assertLess(row["perplexity"], 2048)  # of a uniform guess
        self.assertAlmostEqual(math.log(row["perplexity"]), row["nats_per_token"], places=6)
        self.assertAlmostEqual(row["nats_per_token"] * row["tokens"] / row["bytes"] / math.log(2),
                               row["bits_per_byte"], places=6)
        # The same sum from `score`: BOS, then 127 tokens, in every window.
        (self.folder / "text.jsonl").write_text(json.dumps({"text": (self.folder / "text.txt").read_text()}) + "\n")
        subprocess.run([PROGRAM, "score", "--model", MODEL, "--requests", "text.jsonl", "--output", "ids.jsonl"],
                       cwd=self.folder, check=True, capture_output=True)
        ids = json.loads((self.folder / "ids.jsonl").read_text())["tokens"]
        windows = [ids[begin:begin + 127] for begin in range(0, len(ids), 127)]
        (self.folder / "windows.jsonl").write_text("".join(
            json.dumps({"context_tokens": [1], "continuation_tokens": window}) + "\n" for window in windows))
        subprocess.run([PROGRAM, "score", "--model", MODEL, "--requests", "windows.jsonl", "--output", "out.jsonl"],
                       cwd=self.folder, check=True, capture_output=True)
        scores = [json.loads(line)["logprob"] for line in (self.folder / "out.jsonl").read_text().splitlines()]
        self.assertEqual(row["tokens"], len(ids))
        self.assertAlmostEqual(-sum(scores) / len(ids), row["nats_per_token"], places=6)

    def test_repetition_and_needle(self):
        row = self.rows("repetition", "text.txt", "--window", "256", "--samples", "12", "--answer-len", "8")[0]
        self.assertGreater(row["repetition"], 3 * row["repetition_stderr"])
        rows = self.rows("needle", "text.txt", "--samples", "4", "--lengths", "128,256", "--depths", "0,1")
        self.assertEqual([(one["length"], one["depth"]) for one in rows],
                         [(128, 0), (128, 1), (256, 0), (256, 1), ("all", "all")])
        self.assertGreaterEqual(rows[-1]["needle"], 0.5)
        self.assertEqual(rows[-1]["samples"], 16)
        self.assertGreater(rows[3]["kv_bytes_per_token"], rows[0]["kv_bytes_per_token"])

    def test_choice_formats_agree(self):
        row = self.rows("choice", QUESTIONS)[0]
        self.assertGreater(row["accuracy"], 0.5 + row["accuracy_stderr"])
        self.assertEqual(row["questions"], 16)
        lines = self.run_eval("choice", QUESTIONS, "--format", "csv").stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn(f",{row['accuracy']:.6g},", lines[1])
        self.assertEqual(json.loads(self.run_eval("choice", QUESTIONS, "--format", "jsonl").stdout), row)
        table = self.run_eval("choice", QUESTIONS).stdout.splitlines()
        self.assertTrue(table[0].startswith("choice of ") and table[2].startswith("| attention | KV type | accuracy"))
        self.assertLessEqual(table[2].count("|"), 11)
        self.assertEqual(len({len(line) for line in table[2:]}), 1, "the columns are aligned")

    def test_rows_say_what_was_measured_on_what(self):
        row = self.rows("choice", QUESTIONS)[0]
        self.assertEqual((row["model"], len(row["score_samples"])), (MODEL, 16))
        self.assertAlmostEqual(sum(row["score_samples"]) / 16, row["accuracy"], places=6)
        self.assertTrue(all(row[name] for name in ("model_fingerprint", "machine", "commit")))
        row = self.rows("perplexity", "text.txt", "--window", "512")[0]
        self.assertEqual(len(row["score_samples"]), row["windows"])
        # Nats per token of each window: 255 tokens are scored in all but the last.
        weights = [255] * (row["windows"] - 1)
        weights.append(row["tokens"] - sum(weights))
        nats = sum(weight * sample for weight, sample in zip(weights, row["score_samples"], strict=True))
        self.assertAlmostEqual(nats / row["tokens"], row["nats_per_token"], places=4)

    def test_exact_match_and_rouge(self):
        prompt = "Question: What is the secret code of Zalon? Answer: The secret code of Zalon is"
        lines = [{"prompt": f"The secret code of Zalon is {value}. {prompt}", "answer": str(value)}
                 for value in (4821, 9035, 7718)]
        (self.folder / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        extra = ("--max-tokens", "8", "--stop", ".")
        self.assertGreaterEqual(self.rows("exact-match", "q.jsonl", *extra)[0]["exact_match"], 0.6)
        self.assertGreaterEqual(self.rows("summarize", "q.jsonl", *extra)[0]["rouge_l"], 0.6)

    def test_sparse_attention_acts_in_decode(self):
        rows = {}
        for name, extra in (
            ("dense", ()),
            ("full", ("--attention", "swa", "--attention-option", "swa.caching_ratio=1")),
            ("swa", ("--attention", "swa", "--kv-sparsity", "0.8")),
        ):
            rows[name] = self.rows("perplexity", "text.txt", "--window", "256", "--samples", "2", *extra)[0]
        self.assertEqual(rows["full"]["perplexity"], rows["dense"]["perplexity"])
        self.assertNotEqual(rows["swa"]["perplexity"], rows["dense"]["perplexity"])
        self.assertAlmostEqual(rows["swa"]["tokens_attended"], 0.2, delta=0.01)
        self.assertLess(rows["swa"]["kv_bytes_per_token"], 0.3 * rows["dense"]["kv_bytes_per_token"])

    def shorten_text(self, size):
        (self.folder / "text.txt").write_text((self.folder / "text.txt").read_text()[:size])

    def test_sweep(self):
        # A passage again and again: dense attention finds it, a fifth of the tokens does not hold it.
        passage = (self.folder / "text.txt").read_text()[:800]
        (self.folder / "text.txt").write_text(passage * 6)
        rows = self.rows("perplexity", "text.txt", "--window", "512", "--prefill-len", "384", "--attention",
                         "dense,swa,sparq", "--kv-sparsity", "0,0.8", "--kv-dtype", "bf16,int8",
                         "--attention-option", "sparq.rank=16", "--output", "sweep")
        self.assertEqual([(row["attention"], row["kv_sparsity"], row["kv_dtype"]) for row in rows],
                         [(*cell, dtype) for dtype in ("bf16", "int8") for cell in (
                             ("dense", None), ("swa", 0), ("swa", 0.8), ("sparq", 0), ("sparq", 0.8))])
        dense, full, swa, full_sparq, sparq = rows[:5]
        self.assertEqual(full["perplexity"], dense["perplexity"])
        self.assertEqual(full_sparq["perplexity"], dense["perplexity"])
        self.assertGreater(swa["perplexity"], dense["perplexity"])
        self.assertAlmostEqual(swa["tokens_attended"], 0.2, delta=0.01)
        self.assertLess(swa["kv_bytes_per_token"], sparq["kv_bytes_per_token"])
        self.assertIn("sparq.rank=16", sparq["attention_options"])
        # A cell of a sweep is what a run of its own gives.
        alone = self.rows("perplexity", "text.txt", "--window", "512", "--prefill-len", "384", "--attention", "sparq",
                          "--kv-sparsity", "0.8", "--attention-option", "sparq.rank=16", "--kv-dtype", "int8")
        paired = [{name: row.pop(name) for name in ("minus_dense", "minus_dense_stderr")} for row in rows]
        self.assertEqual(alone, rows[9:])
        self.assertIsNone(paired[0]["minus_dense"])
        self.assertEqual(paired[1], {"minus_dense": 0, "minus_dense_stderr": 0})  # a budget of everything
        self.assertAlmostEqual(paired[2]["minus_dense"], swa["perplexity"] - dense["perplexity"], places=3)
        self.assertGreater(paired[2]["minus_dense_stderr"], 0)
        written = json.loads((self.folder / "sweep" / "eval.json").read_text())
        self.assertEqual(written, [{**row, **pair} for row, pair in zip(rows, paired)])
        self.assertEqual(len((self.folder / "sweep" / "eval.csv").read_text().splitlines()), 11)

    def test_compression(self):
        self.shorten_text(4000)
        rows = self.rows("perplexity", "text.txt", "--window", "512", "--prefill-len", "448", "--attention",
                         "dense,lm-infinite,sparq", "--compression", "1/4,0.125")
        for row in rows[1:]:
            self.assertAlmostEqual(row["kv_bytes_per_token"] / rows[0]["kv_bytes_per_token"], row["compression"],
                                   delta=0.03, msg=row)

    def test_attention_analysis(self):
        self.shorten_text(3000)
        rows = self.rows("attention", "text.txt", "--window", "256", "--prefill-len", "192", "--samples", "2",
                         "--attention", "dense,topk,sparq,lm-infinite", "--kv-sparsity", "0.8")
        over_all = {row["attention"]: row for row in rows if row["layer"] == "all"}
        self.assertEqual(len(rows), 4 * (1 + sum(row["attention"] == "dense" and row["layer"] != "all" for row in rows)))
        dense, topk, sparq, window = (over_all[name] for name in ("dense", "topk", "sparq", "lm-infinite"))
        self.assertAlmostEqual(dense["coverage"], 1, places=5)
        self.assertEqual((dense["top_k_agreement"], dense["tokens_attended"]), (1, 1))
        self.assertAlmostEqual(dense["spearman"], 1, places=5)
        self.assertEqual(dense["attention_sparsity"], dense["dense_attention_sparsity"])
        # One head for each KV head here: the exact top k is the best that can be chosen, but for the current token,
        # which is always among it.
        self.assertGreater(topk["top_k_agreement"], 0.95)
        self.assertLessEqual(topk["top_k_agreement"], 1)
        for row in (sparq, window):
            self.assertLess(row["coverage"], topk["coverage"])
            self.assertLess(row["top_k_agreement"], 1)
            self.assertGreaterEqual(row["attention_sparsity"], 0.79)
        self.assertGreater(sparq["top_k_agreement"], window["top_k_agreement"])
        self.assertAlmostEqual(sparq["coverage_estimated"], sparq["coverage"], delta=sparq["coverage_error"] + 1e-6)
        self.assertIsNone(window["coverage_estimated"])

    def test_memory_changes_no_score(self):
        self.shorten_text(7000)
        (self.folder / "q.jsonl").write_text(json.dumps({"prompt": (self.folder / "text.txt").read_text()[:3000],
                                                         "answer": "a"}) + "\n")
        (self.folder / "c.jsonl").write_text(json.dumps({"context": (self.folder / "text.txt").read_text()[:3000],
                                                         "choices": ["a", "b"], "answer": 0}) + "\n")
        h2o = ("--attention", "h2o", "--kv-sparsity", "0.5", "--threads", "1")  # threads have scratch
        for task, data, *extra in (("perplexity", "text.txt"), ("exact-match", "q.jsonl"), ("choice", "c.jsonl"),
                                   ("needle", "text.txt", "--samples", "1", "--depths", "1")):
            rows = [self.rows(task, data, *extra, *h2o, "--device-memory", memory) for memory in ("20MiB", "256MiB")]
            self.assertEqual(*rows, task)
        for task, option in (("perplexity", "--window"), ("needle", "--lengths")):
            error = self.run_eval(task, "text.txt", *h2o, "--device-memory", "16MiB", code=5).stderr
            fits = re.search(f"{option}: 2048 tokens, .*, or ({option} [0-9]+) fits", error)
            self.assertIsNotNone(fits, error)
            self.run_eval(task, "text.txt", *h2o, "--device-memory", "16MiB", "--samples", "1", *fits.group(1).split())
        for task, data in (("exact-match", "q.jsonl"), ("choice", "c.jsonl")):
            error = self.run_eval(task, data, *h2o, "--device-memory", "14MiB", code=5).stderr
            self.assertRegex(error, rf"{data}: the longest line: \d+ tokens, expected at most \d+, .*\[E-MEM-FIT\]")

    def test_a_refusal_leaves_no_folder(self):
        (self.folder / "short.txt").write_text("a")
        self.run_eval("perplexity", "short.txt", "--output", "report/of/it", code=4)
        self.assertFalse((self.folder / "report").exists())

    def test_files_of_something_else_are_kept(self):
        (self.folder / "report").mkdir()
        for name in ("eval.json", "eval.csv"):
            file = self.folder / "report" / name
            file.write_text("mine")
            extra = ("--window", "64", "--samples", "1", "--output", "report")
            self.assertIn(f"report/{name}: --output: a file that is no report of eval, expected",
                          self.run_eval("perplexity", "text.txt", *extra, code=2).stderr)
            self.assertEqual(file.read_text(), "mine")
            file.unlink()
        (self.folder / "text.txt").write_text("a few words " * 40)
        for _ in range(2):  # an earlier report is replaced
            self.run_eval("perplexity", "text.txt", *extra)

    def test_refusals(self):
        for extra, named in ((("--attention", "dense,swab"), "swab"),
                             (("--attention", "swa", "--kv-sparsity", "0.5,1"), "--kv-sparsity"),
                             (("--attention", "swa", "--compression", "1/0"), "--compression"),
                             (("--attention", "swa", "--compression", "1/2", "--kv-sparsity", "0"), "--kv-sparsity"),
                             (("--attention", "topk", "--compression", "1/8"), "always reads"),
                             (("--attention", "quest", "--compression", "1/4"), "always reads"),
                             (("--attention", "strided", "--compression", "1/32", "--window", "1024"), "of 1024 tokens"),
                             (("--attention", "swa", "--attention-option", "sparq.rank=3"), "sparq.rank"),
                             (("--kv-dtype", "int4"), "int4")):
            self.assertIn(named, self.run_eval("perplexity", "text.txt", *extra, code=2).stderr)
        (self.folder / "bad.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 1}\n{"context": 1}\n')
        self.assertIn("bad.jsonl:2: context", self.run_eval("choice", "bad.jsonl", code=4).stderr)
        (self.folder / "empty").write_text("")
        self.assertIn("E-IN-EVAL", self.run_eval("perplexity", "empty", code=4).stderr)
        self.assertIn("E-IN-OPEN", self.run_eval("perplexity", "missing.txt", code=4).stderr)
        self.assertIn("key clusters", self.run_eval("perplexity", "text.txt", "--attention", "squeezed", code=2).stderr)
        self.assertIn("--window", self.run_eval("perplexity", "text.txt", "--window", "9999", code=2).stderr)
        self.assertIn("--depths", self.run_eval("needle", "text.txt", "--depths", "0,2", code=2).stderr)
        self.assertIn("--lengths", self.run_eval("needle", "text.txt", "--lengths", "", code=2).stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
