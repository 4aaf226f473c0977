#!/usr/bin/env python3
"""Compiler launcher for nvcc: keeps what ptxas says about registers beside the object file.

Usage: capture_ptxas.py COMMAND...      (CMAKE_CUDA_COMPILER_LAUNCHER)

Runs the command. Lines of `ptxas -v` go to OBJECT.ptxas, everything else to stderr as before.
"""

import re
import subprocess
import sys

PTXAS = re.compile(r"^(ptxas info\s*:|\s+\d+ bytes stack frame|\s*\d+ bytes gmem)")


def main() -> int:
    command = sys.argv[1:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    kept, shown = [], []
    for line in result.stderr.splitlines(keepends=True):
        (kept if PTXAS.match(line) else shown).append(line)
    sys.stderr.write("".join(shown))
    if "-o" in command and "-c" in command and result.returncode == 0:
        with open(command[command.index("-o") + 1] + ".ptxas", "w", encoding="utf-8") as report:
            report.write("".join(kept))
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
