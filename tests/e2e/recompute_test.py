#!/usr/bin/env python3
"""Phase III of `triphase run`: chosen by the plan, the same answers, and its bytes where they are reported.

Usage: recompute_test.py TRIPHASE MODEL
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from collections import defaultdict

sys.dont_write_bytecode = True
from unfinished import forget_records  # noqa: E402

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
LINES = 8
LENGTHS = {
    "uniform": [96] * LINES,
    "ragged": [30 + 21 * line for line in range(LINES)],
    "long": [320] * LINES,
}
LAYERS, HIDDEN = 6, 256
INPUT_TOKEN = LAYERS * (HIDDEN + 4)  # bytes of a token's hidden states
RECOMPUTE, TO_DEVICE, TO_HOST = 5, 6, 7  # tracks of a trace
HOST = ("--device-memory", "64MiB", "--host-memory", "64MiB", "--device-kv-memory", "13MiB")
SCHEDULE = tuple(
    f"--policy-option={option}" for option in ("p1=4", "p2=12", "alpha=0.8", "beta=0.6", "window=8", "input-tokens=96")
)


class Recompute(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def command(self, *arguments):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, env=environment)

    def prompts(self, lengths):
        file = self.folder / f"{lengths}.jsonl"
        with file.open("w") as out:
            for line, length in enumerate(LENGTHS[lengths]):
                tokens = [10 + line] + [40 + (line * 37 + at * 11) % 1900 for at in range(length - 1)]
                print(json.dumps({"id": str(line), "prompt_tokens": tokens}), file=out)
        return str(file)

    def run_job(self, name, *extra, lengths="uniform", chunk="768", generated=32, ending=0):
        output = self.folder / f"{name}.jsonl"
        done = self.command("run", "--model", MODEL, "--prompts", self.prompts(lengths), "--output", str(output),
                            "--max-context", "384", "--batch-size", "8", "--max-tokens", str(generated),
                            "--ignore-eos", "--prefill-chunk", chunk, "--progress", "off", *extra)
        self.assertEqual(done.returncode, ending, done.stderr)
        if ending:
            self.assertFalse(output.exists())
            return done
        return done, json.loads(pathlib.Path(f"{output}.summary.json").read_text()), output

    def test_phases_answers_and_bytes(self):
        for lengths in ("uniform", "ragged"):
            for kv in ("int8", "bf16"):
                with self.subTest(lengths=lengths, kv=kv):
                    trace_file = self.folder / "trace.json"
                    _, summary, output = self.run_job(f"third-{lengths}-{kv}", *HOST, *SCHEDULE, "--kv-dtype", kv,
                                                      "--kv-block", "16",
                                                      "--trace", str(trace_file), "--predict", "--profile", "t4",
                                                      lengths=lengths)
                    # The same hidden states under another policy, and nothing recomputed.
                    _, other, alone = self.run_job(f"alone-{lengths}-{kv}", "--policy", "device-only", "--kv-dtype", kv,
                                                   "--kv-block", "16", "--cached-hidden-states", "96", lengths=lengths)
                    self.assertEqual(output.read_bytes(), alone.read_bytes())
                    self.assertEqual(other["cached_hidden_states"], {"tokens": 96, "saved_bytes": 0, "recomputed_tokens": 0})

                    inputs = summary["cached_hidden_states"]
                    self.assertEqual(inputs["tokens"], 96)
                    leading = sum(min(length + 31, 96) for length in LENGTHS[lengths])
                    self.assertEqual(inputs["saved_bytes"], leading * INPUT_TOKEN)
                    self.assertGreater(inputs["recomputed_tokens"], 0)
                    moved = summary["moved_bytes"]
                    self.assertEqual(moved["to_device_by_kind"]["cached_hidden_states"],
                                     inputs["recomputed_tokens"] * INPUT_TOKEN)
                    self.assertEqual(sum(moved["to_device_by_kind"].values()), moved["to_device"])
                    # The simulator predicts the same bytes, steps included.
                    self.assertEqual(summary["prediction"]["steps"], summary["steps"])
                    for way in ("to_device", "to_host"):
                        self.assertEqual(summary["prediction"]["moved_bytes"][way], moved[way])
                    self.assertLessEqual(summary["peak_bytes"]["device"], 64 << 20)
                    self.assertLessEqual(summary["peak_bytes"]["host"], 64 << 20)
                    held = [row for row in summary["memory"] if row["tag"] == "cached-hidden-states"]
                    self.assertEqual([row["tier"] for row in held], ["host"])
                    self.assertGreaterEqual(held[0]["planned_bytes"], held[0]["peak_bytes"])
                    self.assertGreater(held[0]["peak_bytes"], 0)
                    self.check_phases(summary, lengths)
                    self.check_trace(json.loads(trace_file.read_text()), summary)

    def check_phases(self, summary, lengths):
        two, three = summary["placement"]["phase_boundaries"]
        self.assertEqual((two["phase"], three["phase"]), (2, 3))
        self.assertEqual(two["requests"], LINES)
        if lengths == "uniform":
            self.assertEqual(three["requests"], LINES)
            for boundary, step in ((two, 4), (three, 12)):
                self.assertEqual(boundary["generated"], {"least": step, "most": step})
                self.assertEqual(boundary["steps"]["first"], boundary["steps"]["last"])
        else:
            self.assertGreaterEqual(three["generated"]["least"], 12)
            self.assertLess(three["contexts"]["least"], three["contexts"]["most"])
        self.assertTrue(all(phase["steps"] > 0 for phase in summary["placement"]["phases"]))

    def check_trace(self, trace, summary):
        lanes = defaultdict(list)
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                lanes[event["tid"]].append(event)
        tokens = sum(event["args"]["tokens"] for event in lanes[RECOMPUTE])
        self.assertEqual(tokens, summary["cached_hidden_states"]["recomputed_tokens"] * LAYERS)
        for lane, way in ((TO_DEVICE, "to_device"), (TO_HOST, "to_host")):
            self.assertEqual(sum(event["args"]["bytes"] for event in lanes[lane]), summary["moved_bytes"][way])

    def planned(self, name, *extra, memory="64MiB", ending=0):
        return self.run_job(name, "--device-memory", memory, *HOST[2:4], "--device-kv-memory", "6MiB", "--kv-block",
                            "32", *extra, lengths="long", chunk="128", generated=16, ending=ending)

    def test_the_plan_decides(self):
        # A card derived from its stated peaks, so that the plan is the same on every machine.
        _, summary, output = self.planned("auto", "--profile", "t4")
        plan_file = f"{output}.plan.json"
        plan = summary["placement"]["plan"]
        stored = json.loads(pathlib.Path(plan_file).read_text())
        self.assertGreater(plan["beta"], 0)
        self.assertEqual(stored["recompute_source"], "hidden-states-int8")
        self.assertGreater(summary["cached_hidden_states"]["recomputed_tokens"], 0)
        tokens = summary["cached_hidden_states"]["tokens"]
        self.assertGreaterEqual(tokens, stored["schedule"]["input_tokens"])
        self.assertEqual(json.loads(pathlib.Path(f"{output}.manifest.json").read_text())["cached_hidden_states"], tokens)
        whole = output.read_bytes()
        kept = self.folder / "kept.plan.json"
        kept.write_bytes(pathlib.Path(plan_file).read_bytes())
        kv = stored["kv_dtype"]
        _, _, alone = self.run_job("alone", "--policy", "device-only", "--kv-dtype", kv, "--kv-block", "32",
                                   "--cached-hidden-states", str(tokens), lengths="long", generated=16)
        self.assertEqual(whole, alone.read_bytes())

        # A job that goes on, with as much memory or with more and so another plan, keeps its records' numbers.
        for name, memory in (("same", "64MiB"), ("more", "80MiB"), ("less", "64MiB")):
            with self.subTest(resumed=name):
                forget_records(output, 3)
                done, resumed, _ = self.planned("auto", "--profile", "t4", "--retry-failed", memory=memory)
                self.assertEqual("planning again" in done.stderr, name != "same")
                self.assertEqual(output.read_bytes(), whole)
                self.assertEqual(resumed["cached_hidden_states"]["tokens"], tokens)
                self.assertEqual(resumed["requests"]["resumed"], 3)

        # The same plan by name.
        _, summary, given = self.planned("given", "--plan", str(kept), "--plan-force")
        self.assertEqual(summary["placement"]["plan"]["beta"], plan["beta"])
        self.assertGreater(summary["cached_hidden_states"]["recomputed_tokens"], 0)
        self.assertEqual(given.read_bytes(), whole)

        # A type without rounding that somebody asked for is left alone, and so are methods that read whole blocks.
        for name, *options in (("bf16", "--kv-dtype", "bf16"), ("topk", "--attention", "topk")):
            _, summary, _ = self.planned(name, "--profile", "t4", *options)
            self.assertEqual(summary["placement"]["plan"]["beta"], 0, name)
            self.assertEqual(summary["cached_hidden_states"], {"tokens": 0, "saved_bytes": 0, "recomputed_tokens": 0})

    def test_sparse_attention_recomputes_what_it_chose(self):
        schedule = (*HOST, *SCHEDULE, "--attention", "swa", "--kv-sparsity", "0.6", "--kv-dtype", "int8", "--kv-block", "16")
        _, whole, output = self.run_job("sparse", *schedule, "--token-cache", "0B")
        _, _, alone = self.run_job("alone", "--policy", "device-only", *schedule[-8:], "--cached-hidden-states", "96")
        self.assertEqual(output.read_bytes(), alone.read_bytes())
        recomputed = whole["cached_hidden_states"]["recomputed_tokens"]
        moved = whole["moved_bytes"]["to_device_by_kind"]["cached_hidden_states"]
        self.assertGreaterEqual(moved, recomputed * INPUT_TOKEN)
        _, dense, _ = self.run_job("dense", *schedule[:-8], *schedule[-4:])
        self.assertGreater(recomputed, 0)
        self.assertLess(recomputed, dense["cached_hidden_states"]["recomputed_tokens"])
        self.assertLess(moved, dense["moved_bytes"]["to_device_by_kind"]["cached_hidden_states"])
        # What was chosen and recomputed before is in the token cache.
        _, cached, output = self.run_job("cached", *schedule)
        self.assertEqual(output.read_bytes(), alone.read_bytes())
        self.assertLess(cached["cached_hidden_states"]["recomputed_tokens"], recomputed)

    def test_what_cannot_be_recomputed_is_refused(self):
        done = self.run_job("beta", *HOST, "--policy-option=p2=4", "--policy-option=beta=0.5", ending=2)
        self.assertIn("input-tokens", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
