#!/usr/bin/env python3
"""Fails where a kernel of the sources was launched by no program of the race check.

Usage: race_check_coverage.py KERNELS_DIR LAUNCHED...
LAUNCHED: what race_check_main.cpp wrote, lines like (kernel<A, B>).
"""
import pathlib
import re
import sys

# The bounds' parentheses hold calls.
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(\w+)\s*\(")


def main():
    folder, *launched_files = map(pathlib.Path, sys.argv[1:])
    kernels, declared = set(), 0
    for source in sorted(folder.iterdir()):
        if source.suffix in (".cu", ".h") and not source.name.startswith("dialect"):
            text = source.read_text()
            kernels |= set(KERNEL.findall(text))
            declared += text.count("__global__")
    if not kernels or len(kernels) != declared:
        sys.exit(f"{declared} times __global__ in {folder}, but {len(kernels)} names of kernels")
    launched = set()
    for path in launched_files:
        launched |= set(re.findall(r"^\((\w+)", path.read_text(), re.M))
    missing = sorted(kernels - launched)
    if missing:
        sys.exit("no test of the race check launches: " + ", ".join(missing))
    print(f"the race check has run all {len(kernels)} kernels")


if __name__ == "__main__":
    main()
