#!/usr/bin/env python3
"""`triphase eval` with the shipped model: scores that mean something, and refusals.

    eval_test.py TRIPHASE          (unittest options may follow)

Standard library only. The text is the repository's own documentation.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

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
        rows = self.rows("needle", "text.txt", "--samples", "4", "--lengths", "128,256", "--depths", "0,1",
                         "--svg", "n.svg")
        self.assertEqual([(one["length"], one["depth"]) for one in rows],
                         [(128, 0), (128, 1), (256, 0), (256, 1), ("all", "all")])
        self.assertGreaterEqual(rows[-1]["needle"], 0.5)
        self.assertEqual(rows[-1]["samples"], 16)
        self.assertGreater(rows[3]["kv_bytes_per_token"], rows[0]["kv_bytes_per_token"])
        svg = (self.folder / "n.svg").read_text()
        xml.etree.ElementTree.fromstring(svg)
        self.assertEqual(svg.count("<circle"), 5)

    def test_choice_formats_agree(self):
        row = self.rows("choice", QUESTIONS)[0]
        self.assertGreater(row["accuracy"], 0.5 + row["accuracy_stderr"])
        self.assertEqual(row["questions"], 16)
        lines = self.run_eval("choice", QUESTIONS, "--format", "csv").stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn(f",{row['accuracy']:.6g},", lines[1])
        self.assertEqual(json.loads(self.run_eval("choice", QUESTIONS, "--format", "jsonl").stdout), row)
        self.assertTrue(self.run_eval("choice", QUESTIONS).stdout.startswith("| task | attention |"))

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
        self.assertAlmostEqual(rows["swa"]["tokens_touched"], 0.2, delta=0.01)
        self.assertLess(rows["swa"]["kv_bytes_per_token"], 0.3 * rows["dense"]["kv_bytes_per_token"])

    def test_refusals(self):
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
