#!/usr/bin/env python3
"""`triphase cluster` and `run --fixed-context`: a context's KV is shared, squeezed attention decodes by its clusters.

Usage: cluster_test.py TRIPHASE MODEL OTHER_MODEL PROMPTS
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from unfinished import forget_records  # noqa: E402

PROGRAM, MODEL, OTHER, PROMPTS = sys.argv[1:5]
OWN = [[300 + n, 12, 700, 41 + n] for n in range(6)]  # the lines' own tokens
DENSE_BY_CLUSTERS = ("--attention", "squeezed", "--attention-option", "squeezed.threshold=0")
DENSE_COARSE = ("--attention-option", "squeezed.coarse_threshold=0")
TWO = ("--attention-option", "squeezed.levels=2")


def triphase(*arguments, code=0):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != code:
        raise AssertionError(f"exit {done.returncode}, expected {code}: {done.stderr}")
    return done


def token_ids(folder):
    data = (folder / "clusters.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])["token_ids"]["data_offsets"]
    return list(struct.unpack(f"<{(end - begin) // 4}i", data[8 + length + begin:8 + length + end]))


class FixedContext(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        texts = [json.loads(line)["prompt"] for line in pathlib.Path(PROMPTS).read_text().splitlines()]
        cls.text = cls.folder / "context.txt"
        cls.text.write_text(" ".join(texts)[:1500])
        cls.clusters = cls.folder / "clusters"
        cls.made = triphase("cluster", "--model", MODEL, "--context", cls.text, "--output", cls.clusters,
                            "--threads", 2, "--progress", "off")
        cls.facts = json.loads((cls.clusters / "clusters.json").read_text())
        cls.context = token_ids(cls.clusters)
        cls.prompts = cls.folder / "in.jsonl"
        cls.prompts.write_text("".join(json.dumps({"id": f"l{n}", "prompt_tokens": own, "max_tokens": 16}) + "\n"
                                       for n, own in enumerate(OWN)))
        cls.dense = cls.run_job("dense", "--fixed-context", cls.clusters)[0]

    @classmethod
    def run_job(cls, name, *extra, code=0, prompts=None):
        output = cls.folder / f"{name}.jsonl"
        done = triphase("run", "--model", MODEL, "--prompts", prompts or cls.prompts, "--output", output, "--progress",
                        "off", "--threads", 2, "--ignore-eos", *extra, code=code)
        if code > 1:
            return None, None, done
        return output.read_bytes(), json.loads(pathlib.Path(f"{output}.summary.json").read_text()), done

    def squeezed(self, name, *extra, **more):
        return self.run_job(name, "--fixed-context", self.clusters, "--attention", "squeezed", *extra, **more)

    def test_what_was_made(self):
        tokens, window = len(self.context), 100
        self.assertEqual(self.facts["context"]["tokens"], tokens)
        self.assertEqual(self.facts["context"]["clustered_tokens"], tokens - window)
        self.assertEqual(self.facts["fine"]["clusters"], (tokens - window) * 5 // 100)
        self.assertEqual(self.facts["coarse"]["clusters"], (tokens - window) // 100)
        for text in (f"{tokens} tokens", f"{tokens - window} of them clustered", "90.0 % of the keys", "on disk"):
            self.assertIn(text, self.made.stdout)
        again = self.folder / "again"
        triphase("cluster", "--model", MODEL, "--context", self.text, "--output", again, "--threads", 1)
        for name in ("clusters.json", "clusters.safetensors"):
            self.assertEqual((again / name).read_bytes(), (self.clusters / name).read_bytes(), name)
        # The same tokens given as ids.
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps(self.context))
        triphase("cluster", "--model", MODEL, "--context", ids, "--context-format", "ids", "--output", again)
        self.assertEqual((again / "clusters.safetensors").read_bytes(),
                         (self.clusters / "clusters.safetensors").read_bytes())

    def test_the_context_is_in_front_of_every_prompt(self):
        whole = self.folder / "whole.jsonl"
        whole.write_text("".join(json.dumps({"id": f"l{n}", "prompt_tokens": self.context + own, "max_tokens": 16})
                                 + "\n" for n, own in enumerate(OWN)))
        self.assertEqual(self.run_job("whole_out", prompts=whole)[0], self.dense)
        for line in self.dense.splitlines():
            self.assertEqual(json.loads(line)["usage"]["prompt_tokens"], len(self.context) + 4)

    def test_threshold_0_is_dense(self):
        for name, extra in (("one", ()), ("two", (*TWO, *DENSE_COARSE))):
            output, summary, _ = self.run_job(name, "--fixed-context", self.clusters, *DENSE_BY_CLUSTERS, *extra)
            self.assertEqual(output, self.dense)
            self.assertEqual(summary["attention"]["tokens_attended_fraction"], 1)
            self.assertEqual(summary["attention"]["prompt_tokens_attended_fraction"], 1)

    def test_it_is_computed_once_and_few_of_its_tokens_are_attended(self):
        _, dense, _ = self.run_job("counted", "--fixed-context", self.clusters, "--batch-size", 4)
        _, one, done = self.squeezed("squeezed", "--batch-size", 4)
        _, two, _ = self.squeezed("squeezed2", "--batch-size", 4, *TWO)
        for summary in (dense, one, two):
            self.assertEqual(summary["fixed_context"]["tokens"], len(self.context))
            tokens = summary["tokens"]
            self.assertEqual(tokens["prompt"] + tokens["shared_prompt"], len(OWN) * (len(self.context) + 4))
            # Once, and of every line its own tokens with the context's last partial block.
            self.assertLessEqual(tokens["prompt"], len(self.context) + len(OWN) * (4 + 64))
        self.assertIsNone(dense["attention"]["decode_read_bytes"])
        for summary, kept in ((one, "kept_share"), (two, "kept_share_levels2")):
            attended = summary["attention"]["tokens_attended_fraction"]
            read = summary["attention"]["decode_read_bytes"]
            tail = (100 + 4) / len(self.context)
            self.assertGreater(attended, tail)
            self.assertLess(attended, tail + 3 * self.facts["calibration"][kept] + 0.1)
            self.assertLess(read["attended"], 0.9 * read["dense"])
            prompts = summary["attention"]["prompt_tokens_attended_fraction"]
            self.assertGreater(prompts, tail)
            self.assertLess(prompts, 0.8)
            self.assertIn("clusters", [use["tag"] for use in summary["memory"]])
        self.assertIn(f"fixed context: {len(self.context)} tokens in front of every prompt", done.stderr)
        self.assertIn("; prompts attended ", done.stderr)
        self.assertIsNone(dense["attention"]["prompt_tokens_attended_fraction"])

    def test_the_answer_depends_neither_on_neighbours_nor_on_where_kv_lies(self):
        for levels in ((), TWO):
            output, _, _ = self.squeezed("alone", "--overwrite", "--batch-size", 1, *levels)
            self.assertNotEqual(output, self.dense)
            for extra in (("--batch-size", 6), ("--batch-size", 3, "--prefill-chunk", 96)):
                self.assertEqual(self.squeezed("batch", "--overwrite", *extra, *levels)[0], output)
        int8 = self.squeezed("int8", "--kv-dtype", "int8", "--batch-size", 2)[0]
        tight = ("--kv-dtype", "int8", "--batch-size", 2, "--device-kv-memory", "4500KiB", "--host-memory", "64MiB",
                 "--max-context", 520)
        output, summary, _ = self.squeezed("tight", *tight, "--policy-option=p1=0", "--policy-option=alpha=0.8")
        self.assertEqual(output, int8)
        moved = summary["moved_bytes"]
        self.assertGreater(moved["to_device"], 0)
        # Of the host's tokens those whose clusters were chosen.
        self.assertGreater(moved["to_device_by_kind"]["kv_tokens"], 0)
        # A plan that recomputes rounds hidden states; the answer is then that of the same rounding.
        output, summary, _ = self.squeezed("again", *tight, "--profile", "h200")
        tokens = summary["cached_hidden_states"]["tokens"]
        self.assertEqual(output, self.squeezed("rounded", "--kv-dtype", "int8", "--batch-size", 2, "--policy",
                                               "device-only", "--cached-hidden-states", tokens)[0])

    def test_other_methods_decode_behind_it_too(self):
        for method in ("sparq", "swa", "local", "topk"):
            output, summary, _ = self.run_job(method, "--fixed-context", self.clusters, "--attention", method)
            self.assertEqual(len(output.splitlines()), len(OWN))
            self.assertLess(summary["attention"]["tokens_attended_fraction"], 0.6)

    def test_long_prompts_choose_together_whatever_the_steps(self):
        lines = self.folder / "long_prompts.jsonl"
        starts = [[40 + n * step % 900 for n in range(150)] for step in (7, 11, 7, 13)]
        lines.write_text("".join(json.dumps({"prompt_tokens": start + [300 + n], "max_tokens": 8}) + "\n"
                                 for n, start in enumerate(starts)))
        dense, _, _ = self.squeezed("units", "--attention-option", "squeezed.prefill=dense", prompts=lines)
        whole, summary, _ = self.squeezed("units", "--overwrite", "--batch-size", 1, prompts=lines)
        self.assertNotEqual(dense, whole)
        self.assertLess(summary["attention"]["prompt_tokens_attended_fraction"], 0.8)
        for extra in (("--batch-size", 4), ("--batch-size", 3, "--prefill-chunk", 16)):
            self.assertEqual(self.squeezed("units", "--overwrite", *extra, prompts=lines)[0], whole)

    def test_a_resumed_job_has_the_same_context(self):
        arguments = ("--batch-size", 2)
        whole, _, _ = self.squeezed("job", *arguments)
        output = self.folder / "job.jsonl"
        forget_records(output, 3)
        other = self.folder / "other"
        triphase("cluster", "--model", MODEL, "--context", self.text, "--output", other, "--sparsity", 0.5)
        done = self.run_job("job", *arguments, "--fixed-context", other, "--attention", "squeezed", code=4)[2]
        self.assertIn("fixed_context", done.stderr)
        done = self.run_job("job", *arguments, "--attention", "dense", code=4)[2]
        self.assertIn("fixed_context", done.stderr)
        # The same clusters at another place are the same.
        moved = self.folder / "moved"
        shutil.copytree(self.clusters, moved)
        again, summary, _ = self.run_job("job", *arguments, "--fixed-context", moved, "--attention", "squeezed",
                                         "--retry-failed")
        self.assertEqual(again, whole)
        self.assertEqual(summary["requests"]["resumed"], 3)

    def test_text_prompts_have_one_bos(self):
        lines = self.folder / "text.jsonl"
        lines.write_text(json.dumps({"id": "a", "prompt": "The game", "max_tokens": 4}) + "\n")
        alone = json.loads(self.run_job("bos0", prompts=lines)[0])
        behind = json.loads(self.run_job("bos1", "--fixed-context", self.clusters, prompts=lines)[0])
        self.assertEqual(behind["usage"]["prompt_tokens"],
                         len(self.context) + alone["usage"]["prompt_tokens"] - 1)

    def test_a_line_that_does_not_fit_behind_it(self):
        lines = self.folder / "long.jsonl"
        room = 2048 - len(self.context)
        lines.write_text("".join(json.dumps({"prompt_tokens": [5] * count, "max_tokens": 2}) + "\n"
                                 for count in (room - 2, room - 1)))
        fits, long = (json.loads(line) for line in self.run_job("long_out", "--fixed-context", self.clusters,
                                                                prompts=lines, code=1)[0].splitlines())
        self.assertEqual(len(fits["tokens"]), 2)
        self.assertEqual(long["error"]["code"], "E-IN-CONTEXT")
        self.assertIn("of the fixed context", long["error"]["message"])

    def test_eval_of_questions_about_it(self):
        questions = self.folder / "questions.jsonl"
        questions.write_text("".join(json.dumps({"prompt": f"The {n} was", "answer": "a"}) + "\n" for n in range(3)))
        rows = json.loads(triphase("eval", "--model", MODEL, "--task", "exact-match", "--data", questions,
                                   "--fixed-context", self.clusters, "--attention", "dense,squeezed",
                                   "--attention-option", "squeezed.levels=2", "--max-tokens", 4, "--format",
                                   "json").stdout)
        dense, squeezed = rows if isinstance(rows, list) else rows["rows"]
        self.assertEqual(dense["tokens_attended"], 1)
        self.assertLess(squeezed["tokens_attended"], 0.7)
        self.assertIn("squeezed.levels=2", squeezed["attention_options"])

    def test_refusals(self):
        self.assertIn("--fixed-context", self.run_job("no", "--attention", "squeezed", code=2)[2].stderr)
        for extra in (("--kv-sparsity", "0.5"), ("--kv-sparsity", "auto"),
                      ("--attention-option", "squeezed.threshold=2")):
            self.run_job("no", "--fixed-context", self.clusters, "--attention", "squeezed", *extra, code=2)
        done = self.squeezed("no", *DENSE_COARSE, code=2)[2]
        self.assertIn("squeezed.coarse_threshold without groups of clusters, expected squeezed.levels=2", done.stderr)
        # KV of less than the context: no line fits.
        for policy, memory in (("device-only", "1MiB"), ("vllm", "1MiB"), ("triphase", "1MiB")):
            done = self.run_job("no", "--fixed-context", self.clusters, "--policy", policy, "--device-kv-memory", memory,
                                "--host-memory", "64MiB", code=5)[2]
            self.assertIn(f"--fixed-context: {len(self.context)} tokens, expected at most ", done.stderr)
        one = self.folder / "one_level"
        triphase("cluster", "--model", MODEL, "--context", self.text, "--output", one, "--levels", 1)
        done = self.run_job("no", "--fixed-context", one, "--attention", "squeezed", *TWO, code=2)[2]
        self.assertIn("squeezed.levels", done.stderr)
        done = triphase("run", "--model", OTHER, "--prompts", self.prompts, "--output", self.folder / "no.jsonl",
                        "--fixed-context", self.clusters, code=4)
        self.assertIn("model.fingerprint", done.stderr)
        self.assertIn("E-IN-CLUSTERS", done.stderr)
        cut = self.folder / "cut"
        shutil.copytree(self.clusters, cut)
        data = (cut / "clusters.safetensors").read_bytes()
        (cut / "clusters.safetensors").write_bytes(data[:-1])
        self.assertIn("data.bytes", self.run_job("no", "--fixed-context", cut, code=4)[2].stderr)
        (cut / "clusters.safetensors").write_bytes(data[:-1] + b"\x01")
        self.assertIn("data.hash", self.run_job("no", "--fixed-context", cut, code=4)[2].stderr)
        (cut / "clusters.safetensors").unlink()
        self.assertIn(f"{cut}: directory: one without clusters.safetensors, expected what triphase cluster has written",
                      self.run_job("no", "--fixed-context", cut, code=4)[2].stderr)
        self.assertFalse((self.folder / "no.jsonl.part").exists())
        done = triphase("eval", "--model", MODEL, "--task", "perplexity", "--data", self.text, "--fixed-context",
                        self.clusters, code=2)
        self.assertIn("exact-match", done.stderr)
        bad = self.folder / "bad.txt"
        for content, named in ((b"too short", "--window"), (b"\xff" * 999, "UTF-8"),
                               (b"long " * 4000, "the model's context")):
            bad.write_bytes(content)
            done = triphase("cluster", "--model", MODEL, "--context", bad, "--output", self.folder / "none", code=4)
            self.assertIn("E-IN-FIXED", done.stderr)
            self.assertIn(named, done.stderr)
        scaled = self.folder / "scaled"
        shutil.copytree(MODEL, scaled)
        config = json.loads((scaled / "config.json").read_text())
        config["rope_scaling"] = {"rope_type": "dynamic", "factor": 4.0}
        config["max_position_embeddings"] = 512
        (scaled / "config.json").write_text(json.dumps(config))
        bad.write_text("[" + ", ".join(["5"] * 511) + "]")
        done = triphase("cluster", "--model", scaled, "--context", bad, "--context-format", "ids", "--output",
                        self.folder / "none", code=4)
        self.assertIn("511 tokens, expected at most 510: the model's original context, without RoPE scaling, is 512",
                      done.stderr)
        self.assertFalse((self.folder / "none").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
