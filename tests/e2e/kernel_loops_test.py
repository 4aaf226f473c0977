#!/usr/bin/env python3
"""tools/check_kernel_loops.py finds a loop by its sources' functions, wherever they were compiled, and counts it.

Usage: kernel_loops_test.py SOURCE_DIR

The disassembler is a script that prints a listing: this needs no CUDA toolkit.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKER = Path(sys.argv.pop(1)) / "tools" / "check_kernel_loops.py"
COMPILER = "nvcc 13.0.88"
SOURCE = """\
__device__ void load_tile(float* tile) {
  tile[0] += 1;
}
__global__ void walk(float* tile) {
  for (int turn = 0; turn < 8; ++turn) load_tile(tile);
}
"""
LOOPS = """\
[machine]
bytes_per_clock = 16
products_per_clock = 1
[[loop]]
name = "walk"
source = "walk.cu"
kernel = "walk"
threads = 32
shared = 0
around = "load_tile"
bytes = 32
"""
LISTING = """\
.text._Z4walkPf:
	//## File "{folder}/kernels/cuda/walk.cu", line 5
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
	//## File "{folder}/kernels/cuda/walk.cu", line 2 inlined at "{folder}/kernels/cuda/walk.cu", line 5
	//## File "{folder}/kernels/cuda/walk.cu", line 5
        /*0010*/                   LDG.E R2, [R4] ;
        /*0020*/                   FADD R2, R2, 1 ;
{more}	//## File "{folder}/kernels/cuda/walk.cu", line 5
        /*0040*/              @!P0 BRA `(.L_x_0) ;
        /*0050*/                   EXIT ;
"""


class KernelLoops(unittest.TestCase):
    def check(self, compiled_in=None, more="", budget=3):
        """The checker's answer for a kernel whose object names the folder `compiled_in`."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            sources, objects, tools = folder / "kernels" / "cuda", folder / "objects", folder / "tools"
            for made in (sources, objects, tools):
                made.mkdir(parents=True)
            (sources / "walk.cu").write_text(SOURCE)
            (sources / "hot_loops.toml").write_text(LOOPS)
            (sources / "kernel_budget.txt").write_text(f"# {COMPILER}\n#\nsm_90a 16 0 0 walk\n")
            (sources / "loop_budget.txt").write_text(f"# {COMPILER}\n#\n{budget} 1 1.00 32 walk: fma=1\n")
            (objects / "walk.cu.o").write_text("")
            (folder / "listing").write_text(LISTING.format(folder=compiled_in or folder, more=more))
            scripts = {"cuobjdump": "touch walk.sm_90a.cubin", "nvdisasm": f"cat '{folder / 'listing'}'"}
            for tool, command in scripts.items():
                (tools / tool).write_text(f"#!/bin/sh\n{command}\n")
                (tools / tool).chmod(0o755)
            done = subprocess.run(
                [sys.executable, CHECKER, "--objects", objects, "--sources", sources, "--compiler", COMPILER],
                capture_output=True, text=True, env=os.environ | {"TRIPHASE_DISASSEMBLER": str(tools)})
        return done.returncode, done.stdout + done.stderr

    def test_a_loop_within_its_budget_passes(self):
        self.assertEqual(self.check(), (0, "kernel loops: 1 within their budget\n"))

    def test_an_object_of_another_checkout_passes_too(self):
        self.assertEqual(self.check("/nowhere/checkout"), (0, "kernel loops: 1 within their budget\n"))

    def test_a_longer_loop_fails(self):
        code, said = self.check("/nowhere/checkout", more="        /*0030*/                   FMUL R2, R2, R2 ;\n")
        self.assertEqual(code, 1)
        self.assertIn("walk: a turn is 4 instructions; budget 3", said)

    def test_a_spill_fails(self):
        code, said = self.check(more="        /*0030*/                   STL [R1], R2 ;\n", budget=9)
        self.assertEqual(code, 1)
        self.assertIn("walk: 1 spills and 0 calls a turn", said)


if __name__ == "__main__":
    unittest.main()
