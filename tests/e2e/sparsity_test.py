#!/usr/bin/env python3
"""`triphase run --kv-sparsity auto`: the sparsity is chosen by what it changes, written down and kept.

Usage: sparsity_test.py TRIPHASE MODEL PROMPTS
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from unfinished import forget_records  # noqa: E402

PROGRAM, MODEL, PROMPTS = sys.argv[1], sys.argv[2], sys.argv[3]
AUTO = ("--attention", "swa", "--kv-sparsity", "auto")


class AutoSparsity(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        lines = [json.loads(line) for line in pathlib.Path(PROMPTS).read_text().splitlines()]
        short = [line for line in lines if len(line["prompt"]) < 600][:8]
        self.assertGreater(len(short), 4)
        self.prompts = self.folder / "in.jsonl"
        self.prompts.write_text("".join(json.dumps({"id": line["id"], "prompt": line["prompt"], "max_tokens": 40}) + "\n"
                                        for line in short) + "not json\n")

    def run_job(self, name, *extra, code=1):
        output = self.folder / f"{name}.jsonl"
        done = subprocess.run([PROGRAM, "run", "--model", MODEL, "--prompts", str(self.prompts), "--output", str(output),
                               "--progress", "off", "--threads", "2", *extra],
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        if code > 1:
            return done, None, output
        summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text())
        return done, summary["attention"], output

    def test_a_sample_has_room_under_the_method_too(self):
        # 20 MiB hold this line under dense attention; what sparq keeps beside K and V takes a part of that.
        self.prompts.write_text(json.dumps({"prompt_tokens": [20 + 7 * i % 1900 for i in range(900)],
                                            "max_tokens": 16}) + "\n")
        _, attention, _ = self.run_job("tight", "--device-memory", "20MiB", "--attention", "sparq",
                                       "--kv-sparsity", "auto", code=0)
        self.assertEqual(attention["calibration"]["prompts"], 1)

    def test_the_highest_that_holds_is_taken(self):
        done, none, output = self.run_job("none", *AUTO, "--max-divergence", "1e-9")
        self.assertEqual(none["policy"], "dense")
        self.assertIn("decoding is dense", done.stderr)
        self.assertIsNone(none["calibration"]["chosen"])
        tried = none["calibration"]["tried"]
        self.assertEqual([one["kv_sparsity"] for one in tried], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
        self.assertTrue(all(one["tokens"] == tried[0]["tokens"] > 100 for one in tried))
        self.assertGreater(tried[0]["kl_divergence"], tried[-1]["kl_divergence"])
        self.assertLess(tried[0]["greedy_agreement"], tried[-1]["greedy_agreement"] + 1e-9)
        self.assertEqual(none["calibration"]["prompts"], 8)
        _, _, dense = self.run_job("dense")
        self.assertEqual(output.read_bytes(), dense.read_bytes())
        # A limit between the first and the last: the first below it is taken, and nothing lower is tried.
        limit = (tried[2]["kl_divergence"] + tried[6]["kl_divergence"]) / 2
        expected = next(one["kv_sparsity"] for one in tried if one["kl_divergence"] <= limit)
        done, some, chosen = self.run_job("some", *AUTO, "--max-divergence", str(limit))
        self.assertEqual(some["calibration"]["chosen"], expected)
        self.assertEqual(some["calibration"]["tried"][-1]["kv_sparsity"], expected)
        self.assertEqual(some["calibration"]["tried"], tried[:len(some["calibration"]["tried"])])
        self.assertIn(f"swa at KV sparsity {expected:g}: KL divergence", done.stderr)
        self.assertLess(some["tokens_attended_fraction"], 1.05 - expected)
        _, _, given = self.run_job("given", "--attention", "swa", "--kv-sparsity", str(expected))
        self.assertEqual(chosen.read_bytes(), given.read_bytes())

    def test_a_resumed_job_keeps_its_choice(self):
        arguments = (*AUTO, "--max-divergence", "100")
        first, attention, output = self.run_job("job", *arguments)
        self.assertEqual(attention["calibration"]["chosen"], 0.9)
        whole = output.read_bytes()
        stored = pathlib.Path(f"{output}.sparsity.json")
        self.assertEqual(json.loads(stored.read_text()), attention["calibration"])
        forget_records(output, 3)
        pathlib.Path(f"{output}.summary.json").unlink()
        done, again, _ = self.run_job("job", *arguments, "--retry-failed")
        self.assertEqual(again["calibration"], attention["calibration"])
        self.assertEqual(done.stderr.count("KV sparsity 0.9"), 1)  # told, not tried
        self.assertEqual(first.stderr.count("KV sparsity 0.9"), 2)
        self.assertEqual(output.read_bytes(), whole)
        # Another limit is another job.
        done, _, _ = self.run_job("job", *AUTO, "--max-divergence", "50", code=4)
        self.assertIn("max-divergence", done.stderr)
        stored.write_text(stored.read_text().replace("0.9", "9"))
        done, _, _ = self.run_job("job", *arguments, code=4)
        self.assertIn("E-IN-SPARSITY", done.stderr)
        self.run_job("job", *arguments, "--overwrite")

    def test_shards_choose_alike(self):
        choices = [self.run_job(f"shard{i}", *AUTO, "--max-divergence", "100", "--shard", f"{i}/2",
                                code=1 if i == 0 else 0)[1]["calibration"] for i in (0, 1)]
        self.assertEqual(choices[0], choices[1])

    def test_refusals(self):
        for extra, named in ((("--kv-sparsity", "auto"), "sparse --attention"),
                             (("--max-divergence", "1"), "--kv-sparsity auto")):
            self.assertIn(named, self.run_job("refused", *extra, code=2)[0].stderr)
        self.prompts = "-"
        self.assertIn("--prompts -", self.run_job("refused", *AUTO, code=2)[0].stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
