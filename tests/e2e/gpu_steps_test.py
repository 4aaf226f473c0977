#!/usr/bin/env python3
"""What a decode step asks of a GPU, counted on the emulated one: kernels, calls that launch them, copies and waits.

    gpu_steps_test.py TRIPHASE_EMULATED TRIPHASE     unittest options may follow

Standard library only. gpu_jobs.py has the jobs, gpu_jobs_test.py compares their answers.
"""

import json
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

from gpu_jobs import (  # noqa: E402
    config, experts, Jobs, LENGTHS, LONGEST, METHODS, ONCE, options, OTHERS, ROOT, windowed,
)


class GpuSteps(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.jobs = Jobs(scratch.name)

    def test_a_step_of_phase_three_waits_once(self):
        """As test_a_decode_step; every step saves hidden states, too."""
        # Requests that run one after the other reuse what a method kept, by size: all have the same.
        self.jobs.write_prompts("counted", (70,) * 4)
        for method, kv, room in (("swa", "bf16", "260KiB"), ("swa", "int8", "600KiB"), ("local", "bf16", "260KiB")):
            place = ("--policy", "triphase", *options("p1=0", "p2=0", "alpha=0.9", "beta=1", "window=8", "input-tokens=96"),
                     "--host-memory", "64MiB", "--device-kv-memory", room, "--max-context", LONGEST, "--token-cache",
                     "60KiB", "--kv-dtype", kv, "--kv-block", "32")  # fmt: skip
            asked = self.asked_in_a_step(method, 3, place)
            with self.subTest(method=method, kv=kv, asked=asked):
                self.assertEqual(asked[-1], 1)

    def test_a_decode_step_asks_little_of_the_device(self):
        """Allocations, launches, copies and waits of a step in which nothing begins or ends: the tables of docs/gpu.md,
        of all KV on the device and of most of it on the host."""
        tables = []
        for line in (ROOT / "docs" / "gpu.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] == "attention":
                tables.append({})
            elif len(cells) == 6 and cells[1][:1].isdigit():
                numbers = [tuple(map(int, f"{cell} + 0".split(" + ")[:2])) for cell in cells[1:]]
                tables[-1].update(dict.fromkeys(cells[0].split(", "), numbers))
        # A fixed context is computed by one line alone: the first, which ends at once.
        self.jobs.write_prompts("counted", (5, *LENGTHS[:2]), most={0: 1})
        on_host = ("--policy", "flexgen", *options("kv-share=0.25", "weight-share=1"), "--host-memory", "64MiB",
                   "--token-cache", "20KiB", "--max-context", LONGEST)  # fmt: skip
        for place, allowed in zip((("--policy", "device-only"), on_host), tables, strict=True):
            self.assertEqual(set(allowed), {"dense", *METHODS})
            for method, limits in allowed.items():
                self.check_step(method, place, limits)
            for method in ("dense", "swa", "sparq"):
                (most, each), *others = allowed[method]
                self.check_step(method, (*place, "--kv-dtype", "int8"), [(most + 3, each + 1), *others])
        # Blocks that are full get their K^T without a copy of their own.
        for kv in ("fp16", "int8"):
            with self.subTest(kv=kv):
                place = ("--policy", "device-only", "--kv-dtype", kv, "--kv-block", "32")
                asked = self.asked_in_a_step("sparq", 3, place, tokens_of=(12, 76))
                self.assertEqual(asked[2:], [1, 1, 1])
        # One query head for each KV head: V is summed, while it is stored.
        self.asked_in_a_step("sparq", 3, ("--policy", "device-only"), config(4))
        self.assertEqual(self.beside, 3)

    def test_requests_end_without_a_gap(self):
        """What methods keep of a request that ends is not freed: that would wait for the step under way."""
        (self.jobs.folder / "one.json").write_text(json.dumps({**config(4), "num_hidden_layers": 1}))
        most = {line: 3 + line * 5 % 17 for line in range(12)}
        self.jobs.write_prompts("ending", (70, 66, 71, 67, 60, 75, 40, 64, 68, 72, 61, 62), most)
        for method in ("dense", "local", "swa", "h2o", "sparq", "quest"):
            with self.subTest(method=method):
                file = self.jobs.folder / "counts.json"
                summary, _ = self.jobs.run("job", "--policy", "device-only", "--overwrite", *self.jobs.attention(method),
                                           prompts="ending", model="one", machine=f"counts={file}")
                counts = json.loads(file.read_text())
                self.assertGreater(summary["steps"], 30)
                # At the job's end, and where scratch grows with the first prompts.
                self.assertLessEqual(counts["idle"], 5)

    def test_prompts_of_a_step_are_summed_together(self):
        """A layer's prompts, and the blocks that INT8 cuts them into, take one kernel. One more in a job is each
        request's memory, as it begins."""
        for method, kv in (("swa", "bf16"), ("swa", "int8"), ("h2o", "bf16"), ("h2o", "int8")):
            launches = {}
            for prompts in (0, 1, 4):
                self.jobs.write_prompts("together", (60,) * max(1, prompts))
                file = self.jobs.folder / "counts.json"
                summary, _ = self.jobs.run(
                    "job", "--policy", "device-only", "--overwrite", "--kv-dtype", kv, "--kv-block", "32",
                    *self.jobs.attention(method if prompts else "dense"), prompts="together", tokens=1,
                    machine=f"counts={file}")  # fmt: skip
                self.assertEqual(summary["steps"], 1)
                launches[prompts] = json.loads(file.read_text())["launches"]
            with self.subTest(method=method, kv=kv, launches=launches):
                self.assertEqual(launches[1], launches[0] + 3 + 1)
                self.assertEqual(launches[4], launches[1] + 3)

    def test_graphs_change_no_answer(self):
        for method in ("dense", "swa"):
            with self.subTest(method=method):
                asked, answers = {}, {}
                for refused in (0, 1):
                    file = self.jobs.folder / "counts.json"
                    _, answers[refused] = self.jobs.run(
                        "job", "--policy", "device-only", "--overwrite", *self.jobs.attention(method),
                        machine=f"schedule=3,refuse-graphs={refused},counts={file}")  # fmt: skip
                    asked[refused] = json.loads(file.read_text())
                self.assertEqual(answers[0], answers[1])
                self.assertEqual((asked[1]["graphs"], asked[1]["submissions"]), (0, asked[1]["launches"]))
                self.assertGreater(asked[0]["graphs"], 0)
                self.assertEqual(asked[0]["launches"], asked[1]["launches"])
                self.assertLess(2 * asked[0]["submissions"], asked[0]["launches"])

    def test_a_layer_with_experts_is_four_kernels_more(self):
        self.jobs.write_prompts("counted", (5, *LENGTHS[:2]), most={0: 1})
        dense, some = (self.asked_in_a_step("dense", 3, ("--policy", "device-only"), shape)
                       for shape in (config(2), experts(8, 2)))
        self.assertEqual(some[0] - dense[0], 3 * 4)
        self.assertEqual(some[2:], dense[2:], "copies and waits")

    def test_a_layer_with_a_window_asks_what_others_do(self):
        self.jobs.write_prompts("counted", (5, *LENGTHS[:2]), most={0: 1})
        for kv in ("fp16", "int8"):
            place = ("--policy", "device-only", "--kv-dtype", kv, "--kv-block", "32")
            none, beyond, every, second = (self.asked_in_a_step("dense", 3, place, shape) for shape in (
                windowed(16, sliding=(False, False, False)), windowed(120), windowed(16),
                windowed(16, sliding=(False, True, False))))  # fmt: skip
            with self.subTest(kv=kv, none=none, every=every, second=second):
                self.assertEqual(beyond, none)
                self.assertEqual(every, none)
                # Whole contexts and windows are divided among warps once each.
                self.assertEqual(second[0], none[0] + 1)
                self.assertEqual(second[2:], none[2:], "copies and waits")
        # In longer contexts these layers keep KV as far back as the window reaches.
        self.jobs.write_prompts("counted", (5, 200, 150), most={0: 1})
        for kv in ("fp16", "int8"):
            place = ("--policy", "device-only", "--kv-dtype", kv, "--kv-block", "32")
            none = self.asked_in_a_step("dense", 3, place, windowed(16, sliding=(False, False, False)))
            apart = self.asked_in_a_step("dense", 3, place, windowed(16, sliding=(True, False, True)))
            with self.subTest(kv=kv, none=none, apart=apart):
                self.assertIn("2 of 3 layers keep KV as far back", self.jobs.log)
                self.assertEqual(apart[0], none[0] + 1)
                self.assertEqual(apart[2:], none[2:], "copies and waits")

    def check_step(self, method, place, limits):
        three, four = (self.asked_in_a_step(method, layers, place) for layers in (3, 4))
        with self.subTest(method=method, place=place, three=three, four=four):
            # Sums of weights run beside the output product, attention over INT8's partial blocks beside full ones.
            self.assertEqual(self.beside, 4 * ((method in ("swa", "h2o")) + ("int8" in place)))
            for in_three, in_four, (most, each) in zip(three, four, limits, strict=True):
                self.assertLessEqual(in_three, most)
                self.assertLessEqual(in_four, most + each)

    def asked_in_a_step(self, method, layers, place, shape=config(2), tokens_of=None):
        """Kernels, calls that launch them, copies to the device and from it, and waits. Of jobs of so many tokens; by
        default no step between them closes a block of 32, and requests on the host have all been there for a while."""
        tokens_of = tokens_of or ((5, 9) if place[1] == "device-only" else (12, 20))
        model = f"layers{layers}"
        (self.jobs.folder / f"{model}.json").write_text(json.dumps({**shape, "num_hidden_layers": layers}))
        attention = self.jobs.attention(method, model)
        counts = []
        for tokens in tokens_of:
            file = self.jobs.folder / "counts.json"
            summary, _ = self.jobs.run("job", *place, "--overwrite", *attention, tokens=tokens,
                                       prompts="counted", model=model, machine=f"counts={file}")
            self.assertEqual(place[1] != "device-only", summary["moved_bytes"]["to_device"] > 0)
            counts.append({**json.loads(file.read_text()), "steps": summary["steps"]})
        for one in counts:
            self.assertEqual(one["pageable"], ONCE.get(method, 0), "copies of memory that is not pinned")
        self.assertEqual(counts[1]["allocations"], counts[0]["allocations"])
        steps = counts[1]["steps"] - counts[0]["steps"]
        asked = [(counts[1][key] - counts[0][key]) / steps
                 for key in ("launches", "submissions", "uploads", "downloads", "waits", "idle")]
        self.beside = (counts[1]["beside"] - counts[0]["beside"]) / steps
        # The next step is queued before the host waits for this one's tokens.
        self.assertEqual(asked.pop(), 0, "steps that the device ends without work")
        return asked


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *OTHERS])
