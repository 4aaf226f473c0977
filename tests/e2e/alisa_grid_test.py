#!/usr/bin/env python3
"""bench/alisa_grid.py: what sampled steps say of a tiny cell, beside a whole run of it; and that bench/method_steps.py
measures every method. Work is compared, never time.

    alisa_grid_test.py SOURCE_DIR TRIPHASE
"""

import json
import runpy
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE, PROGRAM = Path(sys.argv.pop(1)).resolve(), Path(sys.argv.pop(1)).resolve()
SCRIPT = SOURCE / "bench" / "alisa_grid.py"
MODEL = SOURCE / "bench" / "shapes" / "tiny-test" / "config.json"
CELL = ["--batch-size", "4", "--input-len", "64", "--output-len", "192"]
TOKENS = 4 * 192
GRID = runpy.run_path(str(SCRIPT))


class AlisaGrid(unittest.TestCase):
    def rows(self, *arguments, ending=0):
        command = [sys.executable, SCRIPT, PROGRAM, "--model", MODEL, "--profile", "h100-80gb", "--threads", "1",
                   "--host-memory", "1GiB", *arguments]  # fmt: skip
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(run.returncode, ending, run.stderr)
        self.said = run.stderr
        return {row["configuration"]: row for row in map(json.loads, run.stdout.splitlines())}

    def check(self, row, steps, moved=None):
        """Estimated steps and bytes are as near to the whole run's as these shares of them."""
        full, estimated = row["full"], row["estimated"]
        self.assertEqual(full["generated"], TOKENS)
        self.assertLessEqual(abs(estimated["steps"] - full["steps"]), steps * full["steps"], row)
        if moved is None:
            self.assertEqual((estimated["bytes_to_device"], full["bytes_to_device"]), (0, 0), row)
        else:
            self.assertGreater(full["bytes_to_device"], 0)
            apart = abs(estimated["bytes_to_device"] - full["bytes_to_device"])
            self.assertLessEqual(apart, moved * full["bytes_to_device"], row)
        self.assertGreater(estimated["decode_seconds"], 0)

    def test_where_everything_fits_the_steps_are_exact(self):
        rows = self.rows(*CELL, "--full", "--only", "triphase,triphase-dense,flexgen,vllm")
        for name in ("triphase", "triphase-dense", "flexgen", "vllm"):
            self.check(rows[name], 1e-9)
        self.assertIn("kv-share=1.00", rows["flexgen"]["options"])
        contexts = [sample["context"] for sample in rows["vllm"]["samples"]]
        self.assertEqual(contexts, sorted(contexts))
        self.assertGreater(contexts[0], 64)
        self.assertLess(contexts[-1], 256)
        self.assertEqual(rows["vllm"]["predicted"]["steps"], rows["vllm"]["full"]["steps"])
        self.assertIn("predicted with profile h100-80gb", self.said)

    def test_samples_follow_the_plan_of_the_cell(self):
        row = self.rows(*CELL, "--device-memory", "3000KiB", "--full", "--samples", "6", "--only", "dynamic")["dynamic"]
        self.assertTrue(row["planned"])
        self.check(row, 1e-9, 0.06)
        self.assertGreater(row["full"]["phase_steps"][1], 0)
        begin = 64 + row["full"]["phase_steps"][0]
        for sample in row["samples"]:
            self.assertEqual(sample["phase_steps"][1] > sample["phase_steps"][0], sample["context"] > begin, row["samples"])
        self.assertLess(row["samples"][-1]["idle_share"]["link to device"], 1)
        self.assertEqual(row["samples"][0]["idle_share"]["link to device"], 1)

    def test_waves_and_preemptions(self):
        rows = self.rows(*CELL, "--device-memory", "2810KiB", "--full", "--only", "triphase-dense,device-only,vllm,zero")
        self.assertEqual(rows["device-only"]["full"]["max_batch"], 2)
        self.check(rows["device-only"], 1e-9)
        for name in ("triphase-dense", "vllm"):  # both give blocks on demand
            self.assertGreater(rows[name]["full"]["preemptions"], 0)
            self.check(rows[name], 0.25)  # which requests run together depends on when they began
        self.assertIn("E-", rows["zero"]["refused"])
        self.assertNotIn("estimated", rows["zero"])
        # Of four requests three run at once, then one.
        row = self.rows(*CELL, "--device-memory", "3000KiB", "--full", "--only", "device-only")["device-only"]
        self.assertEqual(row["full"]["max_batch"], 3)
        self.check(row, 1e-9)

    def test_ablation_has_the_steps_of_figure_12c(self):
        rows = self.rows("--batch-size", "2", "--input-len", "32", "--output-len", "64", "--samples", "2", "--miss-rate", "0.25",
                         "--ablation")
        self.assertEqual(list(rows), ["flexgen", "dynamic", "dynamic+sparse", "dynamic+sparse+recompute",
                                      "dynamic+sparse+recompute+int8"])  # fmt: skip
        kinds = [row["samples"][0]["kv_dtype"] for row in rows.values()]
        self.assertEqual(kinds, ["fp16"] * 4 + ["int8"])
        self.assertNotIn("full", rows["dynamic"])

    def test_sums_are_those_of_lines(self):
        def line(context):
            return 3 + 0.5 * context

        points = [(context, line(context)) for context in (20, 31.5, 57)]
        self.assertAlmostEqual(GRID["integrate"](points, 10, 80), sum(map(line, range(10, 81))))
        self.assertEqual(GRID["covered"]([(0, 4), (2, 6), (9, 20)], [(1, 5), (8, 10)]), 5)

    def test_every_method_has_its_step(self):
        steps = [sys.executable, SOURCE / "bench" / "method_steps.py", PROGRAM, "--heads", "2", "--kv-heads", "1", "--layers", "3",
                 "--batch-size", "3", "--context", "200", "--chunk", "256", "--steps", "400", "--only"]  # fmt: skip
        names = "dense,dense-int8,sparq,sparq-int8,swa,swa-int8,local,topk,quest,h2o"
        run = subprocess.run([str(part) for part in [*steps, names]], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = {row["method"]: row for row in map(json.loads, run.stdout.splitlines())}
        self.assertEqual(",".join(rows), names)
        for name, row in rows.items():
            self.assertEqual((row["batch"], row["kv_heads"]), (3, 1), row)
            self.assertEqual(row["steps"], 400)
            self.assertGreater(row["speedup"], 0)
            self.assertAlmostEqual(row["speedup"], rows["dense"]["step_us"] / row["step_us"])
            self.assertGreater(row["prefill_seconds"], 0)
            self.assertEqual(row["tokens_attended_fraction"] < 1, not name.startswith("dense"), row)
        run = subprocess.run([str(part) for part in [*steps, "alisa"]], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(run.returncode, 2)

    def test_misuse(self):
        self.rows(*CELL, "--only", "alisa", ending=2)
        self.rows("--output-len", "12", ending=2)


if __name__ == "__main__":
    unittest.main()
