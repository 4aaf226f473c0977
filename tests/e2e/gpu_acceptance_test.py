#!/usr/bin/env python3
"""tools/gpu_acceptance with stand-ins for the programs and for nvidia-smi: skipping, resuming, exit codes.

Usage: gpu_acceptance_test.py SOURCE_DIR
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()


class GpuAcceptance(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.kit = Path(self.temporary.name) / "kit"
        self.path = Path(self.temporary.name) / "path"
        (self.kit / "bin").mkdir(parents=True)
        self.path.mkdir()
        for tool in ("python3", "sh", "env"):
            (self.path / tool).symlink_to(shutil.which(tool))
        shutil.copy(SOURCE / "tools" / "gpu_acceptance", self.kit)
        self.program("triphase", 'if [ "$1" = --version ]; then echo "commit: abc"; else echo "[{}]"; fi')
        self.program("cpu_test", "echo ran >> ran.txt")
        self.program("card_test", "exit 0")
        (self.kit / "bin" / "gpu_tests.txt").write_text("emulated:cpu_test\ngpu:card_test\n")

    def program(self, name, body, folder=None):
        file = (folder or self.kit / "bin") / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    def add_gpu(self):
        self.program("nvidia-smi", "echo 'NVIDIA H200, 580.1'", self.path)

    def accept(self, *arguments):
        run = subprocess.run([sys.executable, str(self.kit / "gpu_acceptance"), *arguments], cwd=self.temporary.name,
                             env={"PATH": str(self.path), "HOME": self.temporary.name}, capture_output=True, text=True, timeout=300)
        return run.returncode, run.stdout + run.stderr

    def results(self, gpu="nvidia-h200"):
        return json.loads((self.kit / "bench" / "results" / gpu / "acceptance.json").read_text())

    def test_without_a_gpu_only_what_needs_none_runs(self):
        code, shown = self.accept()
        self.assertEqual(code, 5, shown)
        steps = self.results("no-gpu")["steps"]
        self.assertEqual(steps["test/cpu_test"]["status"], "passed")
        self.assertEqual(steps["test/card_test"]["status"], "skipped")
        self.assertIn("no GPU driver", steps["bench/gemm"]["why"])
        self.assertEqual(self.results("no-gpu")["commit"], "abc")

    def test_with_a_gpu_a_stage_passes_and_is_not_run_again(self):
        self.add_gpu()
        self.assertEqual(self.accept("test")[0], 0)
        self.assertEqual(self.accept("test")[0], 0)
        self.assertEqual((Path(self.temporary.name) / "ran.txt").read_text(), "ran\n")
        self.accept("test", "--again")
        self.assertEqual((Path(self.temporary.name) / "ran.txt").read_text(), "ran\nran\n")
        self.program("cpu_test", "echo new >> ran.txt")
        self.accept("test")
        self.assertIn("new", (Path(self.temporary.name) / "ran.txt").read_text())

    def test_bench_rows_and_raw_output_are_kept(self):
        self.add_gpu()
        self.assertEqual(self.accept("bench")[0], 0)
        results = self.results()
        self.assertEqual(results["steps"]["bench/transfer"]["rows"], [{}])
        folder = self.kit / "bench" / "results" / "nvidia-h200"
        self.assertEqual((folder / results["steps"]["bench/transfer"]["raw"]).read_text(), "[{}]\n")

    def test_a_failure_shows_in_the_exit_code_and_is_tried_again(self):
        self.add_gpu()
        self.program("card_test", "exit 3")
        code, shown = self.accept("test")
        self.assertEqual(code, 1, shown)
        self.assertEqual(self.results()["steps"]["test/card_test"]["exit"], 3)
        self.program("card_test", "exit 0")
        self.assertEqual(self.accept("test")[0], 0)

    def test_the_budget_leaves_steps_for_the_next_call(self):
        self.add_gpu()
        self.program("cpu_test", "/bin/sleep 1.1")
        code, shown = self.accept("test", "--budget", "1")
        self.assertEqual(code, 75, shown)
        self.assertEqual(self.accept("test", "--budget", "600")[0], 0)

    def test_misuse(self):
        self.assertEqual(self.accept("all")[0], 2)


if __name__ == "__main__":
    unittest.main()
