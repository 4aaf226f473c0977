#!/usr/bin/env python3
"""`triphase score` as a user runs it: durable, resumable, independent of batches and shards.

    score_test.py TRIPHASE          (unittest options may follow)

Standard library only; the shipped model for text, the tiny one of the hostile corpus for the rest.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("TRIPHASE_SOURCE_DIR", pathlib.Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bad"))

from bad_case import ModelFolder  # noqa: E402

PROGRAM = ""
SHIPPED = str(ROOT / "models" / "shipped" / "triphase-mha")


def id_requests(count):
    generator = random.Random(5)

    def ids(least, most):
        return [generator.randrange(3, 32) for _ in range(generator.randrange(least, most))]

    shared = ids(40, 41)
    lines = []
    for n in range(count):
        kind = n % 4
        if kind == 0:
            lines.append({"id": n, "context_tokens": shared, "continuation_tokens": ids(1, 9)})
        elif kind == 1:
            lines.append({"id": n, "context_tokens": ids(1, 50), "continuation_tokens": ids(1, 9)})
        elif kind == 2:
            lines.append({"id": n, "text_tokens": ids(1, 300)})
        else:
            lines.append({"id": n, "context_tokens": [], "continuation_tokens": ids(1, 60)})
    return "".join(json.dumps(line) + "\n" for line in lines)


class ScoreTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-score-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        ModelFolder(self.folder / "model").llama()

    def command(self, *extra, model="model", output="out.jsonl"):
        return [PROGRAM, "score", "--model", model, "--requests", "in.jsonl", "--output", output, *extra]

    def score(self, *extra, text=None, model="model", output="out.jsonl", code=0):
        if text is not None:
            (self.folder / "in.jsonl").write_text(text, encoding="utf-8")
        result = subprocess.run(self.command(*extra, model=model, output=output), cwd=self.folder,
                                capture_output=True, check=False, timeout=300)
        self.assertEqual(result.returncode, code, result.stderr.decode())
        return (self.folder / output).read_text() if code in (0, 1) else result.stderr.decode()

    def records(self, text):
        return [json.loads(line) for line in text.splitlines()]

    def test_a_line_that_fits_a_smaller_batch_alone_is_scored(self):
        text = json.dumps({"text_tokens": [1] * 2048}) + "\n"
        job = ("--kv-dtype=bf16", "--device-memory=20MiB", "--threads=1")
        errors = self.folder / "log"
        whole = self.score("--threads=1", "--kv-dtype=bf16", text=text, model=SHIPPED)
        self.assertEqual(self.score("--overwrite", *job, f"--log-file={errors}", model=SHIPPED), whole)
        self.assertIn("wait for the others", errors.read_text())

    def test_the_same_bytes_in_any_batch_shard_and_thread_count(self):
        whole = self.score(text=id_requests(60))
        for extra in (["--batch-size=1"], ["--batch-size=7", "--prefill-chunk=5"], ["--threads=1"],
                      ["--device-kv-memory=64K"]):
            self.assertEqual(self.score("--overwrite", *extra), whole, extra)
        parts = []
        for shard in range(3):
            self.score(f"--shard={shard}/3", output=f"part{shard}")
            parts.append(f"part{shard}")
        subprocess.run([PROGRAM, "merge", *parts, "--output", "joined"], cwd=self.folder, check=True,
                       capture_output=True)
        self.assertEqual((self.folder / "joined").read_text(), whole)

    def test_killed_and_resumed_gives_the_same_file(self):
        text = id_requests(1200)
        whole = self.score("--sync-every=0s", text=text, output="whole.jsonl")
        generator = random.Random(1)
        part = self.folder / "out.jsonl.part"
        for _ in range(3):
            process = subprocess.Popen(self.command("--sync-every=0s"), cwd=self.folder, stderr=subprocess.DEVNULL)
            size = part.stat().st_size if part.exists() else 0
            deadline = time.monotonic() + 300
            while process.poll() is None and not (part.exists() and part.stat().st_size > size):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.002)
            time.sleep(generator.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.assertEqual(self.score(), whole)
        summary = json.loads((self.folder / "out.jsonl.summary.json").read_text())
        self.assertGreater(summary["requests"]["resumed"], 0)

    def retrieval_requests(self, samples=6, passage=320, cue=32, answer=24):
        """A passage of text, its beginning again, and as continuation how it goes on: only the context knows it."""
        text = "".join((ROOT / "docs" / name).read_text() for name in ("prompts.md", "eval.md"))
        self.score(model=SHIPPED, text=json.dumps({"text": text}) + "\n", output="ids.jsonl")
        ids = self.records((self.folder / "ids.jsonl").read_text())[0]["tokens"]
        lines = []
        for sample in range(samples):
            chunk = ids[sample * passage:(sample + 1) * passage]
            again = 40 + 30 * sample
            lines.append({"id": sample, "context_tokens": [1, *chunk, *chunk[again:again + cue]],
                          "continuation_tokens": chunk[again + cue:again + cue + answer]})
        return "".join(json.dumps(line) + "\n" for line in lines), answer

    def test_a_method_that_forgets_the_passage_scores_worse(self):
        text, answer = self.retrieval_requests()

        def scores(*extra):
            return [record["logprob"] / answer
                    for record in self.records(self.score("--overwrite", *extra, model=SHIPPED, text=text))]

        dense = scores()
        local = scores("--attention=local", "--kv-sparsity=0.95")
        sparq = scores("--attention=sparq", "--kv-sparsity=0.875")
        whole = scores("--attention=local", "--kv-sparsity=0")
        # The model finds the passage; guessing would cost ln(2048) = 7.6 nats per token.
        self.assertGreater(sum(dense) / len(dense), -2.0)
        for here, without in zip(dense, local):
            self.assertLess(without, here - 1.0)
        self.assertLess(sum(local) / len(local), sum(dense) / len(dense) - 3.0)
        for here, chosen in zip(dense, sparq):
            self.assertLess(abs(chosen - here), 0.3)
        # The decode path itself costs nothing.
        self.assertEqual(whole, dense)

    def test_a_method_scores_as_eval_does(self):
        """One window of eval's perplexity, its dense prefix as context."""
        method = ("--attention=swa", "--kv-sparsity=0.8")
        text = (ROOT / "docs" / "scoring.md").read_text()[:600]
        (self.folder / "text.txt").write_text(text, encoding="utf-8")
        row = json.loads(subprocess.run(
            [PROGRAM, "eval", "--model", SHIPPED, "--task", "perplexity", "--data", "text.txt", "--window", "1024",
             "--prefill-len", "50", "--format", "json", *method],
            cwd=self.folder, check=True, capture_output=True, text=True).stdout)[0]
        self.assertEqual(row["windows"], 1)
        ids = [1, *self.records(self.score(model=SHIPPED, text=json.dumps({"text": text}) + "\n"))[0]["tokens"]]
        line = json.dumps({"context_tokens": ids[:51], "continuation_tokens": ids[51:]}) + "\n"
        scored = self.records(self.score("--overwrite", *method, model=SHIPPED, text=line))[0]
        self.assertEqual(len(scored["tokens"]), row["tokens"])
        self.assertAlmostEqual(-scored["logprob"] / row["tokens"], row["nats_per_token"], places=6)
        dense = self.records(self.score("--overwrite", model=SHIPPED, text=line))[0]
        self.assertNotEqual(dense["logprob"], scored["logprob"])

    def test_a_method_scores_the_same_wherever_kv_lives(self):
        """Batches, KV on the host, lines that make room and are computed again: the same bytes."""
        method = ("--attention=swa", "--kv-sparsity=0.8", "--kv-block=8")
        retrieval = [json.loads(line) for line in self.retrieval_requests(samples=3, passage=160)[0].splitlines()]
        texts = [{"text_tokens": line["context_tokens"][at:at + 110]} for line in retrieval for at in (1, 20, 40, 50)]
        text = "".join(json.dumps(line) + "\n" for line in texts + retrieval)
        whole = self.score("--overwrite", *method, model=SHIPPED, text=text)

        def same(*extra):
            self.assertEqual(self.score("--overwrite", *method, *extra, model=SHIPPED), whole, extra)
            return json.loads((self.folder / "out.jsonl.summary.json").read_text())

        same("--batch-size=2", "--prefill-chunk=40", "--policy=device-only")
        self.assertGreater(same("--device-kv-memory=6M")["placement"]["phases"][1]["steps"], 0)
        self.assertGreater(same("--policy=flexgen", "--policy-option=kv-share=0", "--policy-option=weight-share=0",
                                "--batch-size=4", "--device-memory=30M")["moved_bytes"]["to_host"], 0)
        for preemption in ("swap", "recompute"):
            summary = same("--policy=vllm", f"--policy-option=preemption={preemption}", "--device-kv-memory=3M")
            self.assertGreater(summary["placement"]["preemptions"], 0, preemption)

    def test_another_job_is_refused(self):
        self.score(text=id_requests(4))
        self.assertIn("E-IN-MANIFEST", self.score("--token-logprobs", code=4))
        self.assertIn("E-IN-MANIFEST", self.score("--attention=local", code=4))
        run = subprocess.run([PROGRAM, "run", "--model", "model", "--prompts", "in.jsonl", "--output", "out.jsonl"],
                             cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(run.returncode, 4)
        self.assertIn(b"E-IN-MANIFEST", run.stderr)

    def test_a_text_and_its_halves(self):
        """Chain rule: log P(context + continuation) = log P(context) + log P(continuation | context)."""
        context, continuation = "Once upon a time there was", " a king who had three sons."
        records = self.records(self.score(
            "--token-logprobs", model=SHIPPED,
            text=json.dumps({"context": "", "continuation": context + continuation}) + "\n" +
            json.dumps({"context": "", "continuation": context}) + "\n" +
            json.dumps({"context": context, "continuation": continuation}) + "\n" +
            json.dumps({"text": context + continuation}) + "\n"))
        whole, first, second, rolling = records
        self.assertEqual(whole["tokens"], first["tokens"] + second["tokens"])
        self.assertAlmostEqual(whole["logprob"], first["logprob"] + second["logprob"], places=9)
        self.assertEqual(rolling["logprob"], whole["logprob"])
        self.assertEqual(len(whole["token_logprobs"]), whole["usage"]["completion_tokens"])
        self.assertLess(whole["logprob"] / len(whole["tokens"]), -0.5)
        # A uniform guess would be at -ln(2048) = -7.6 per token.
        self.assertGreater(whole["logprob"] / len(whole["tokens"]), -6.5)

    def test_greedy_completions_score_as_greedy(self):
        prompts = [{"id": n, "prompt_tokens": [1, 500 + n, 30, 40 + n], "max_tokens": 12, "ignore_eos": True,
                    "logprobs": 0} for n in range(8)]
        (self.folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts))
        subprocess.run([PROGRAM, "run", "--model", SHIPPED, "--prompts", "prompts.jsonl", "--output", "runs.jsonl"],
                       cwd=self.folder, check=True, capture_output=True)
        runs = self.records((self.folder / "runs.jsonl").read_text())
        scored = self.records(self.score("--token-logprobs", model=SHIPPED, text="".join(
            json.dumps({"id": run["id"], "context_tokens": prompt["prompt_tokens"],
                        "continuation_tokens": run["tokens"]}) + "\n" for prompt, run in zip(prompts, runs))))
        for run, score in zip(runs, scored):
            self.assertTrue(score["is_greedy"])
            # The same numbers on another path; `run` prints them as F32.
            for one, other in zip(run["logprobs"], score["token_logprobs"]):
                self.assertAlmostEqual(one["logprob"], other, delta=1e-6 * abs(other))
        worse = dict(zip(("context_tokens", "continuation_tokens"),
                         (prompts[0]["prompt_tokens"], [*runs[0]["tokens"][:-1], 7])))
        self.assertFalse(self.records(self.score("--overwrite", model=SHIPPED, text=json.dumps(worse) + "\n"))[0][
            "is_greedy"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
