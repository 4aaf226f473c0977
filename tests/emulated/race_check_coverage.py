#!/usr/bin/env python3
"""Fails where a kernel of the sources was launched by no program of the race check, or with blocks that need more
registers than an H100 has for one.

Usage: race_check_coverage.py KERNELS_DIR LAUNCHED...
LAUNCHED: what race_check_main.cpp wrote, lines like (kernel<A, B>) 256: the most threads of a block.
"""
import collections
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

from check_kernel_budget import read_budget  # noqa: E402

# The bounds' parentheses hold calls.
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(\w+)\s*\(")


REGISTERS_OF_BLOCK = 65536
# A warp takes registers in units of 256: a multiple of 8 for each of its threads.
REGISTER_UNIT = 8
WARP = 32


def registers_by_kernel(budget):
    """Of a thread, the most of any form of the kernel on any architecture."""
    most = collections.defaultdict(int)
    for (_, kernel), (registers, _, _) in read_budget(budget).items():
        name = kernel.split("<")[0]
        most[name] = max(most[name], registers)
    return most


def too_many_registers(budget, threads):
    registers = registers_by_kernel(budget)
    found = []
    for kernel, count in sorted(threads.items()):
        # A new kernel has no line yet: check_kernel_budget.py asks for it.
        each = -(-registers.get(kernel, 0) // REGISTER_UNIT) * REGISTER_UNIT
        needed = each * -(-count // WARP) * WARP
        if needed > REGISTERS_OF_BLOCK:
            found.append(f"{kernel}: {count} threads need {needed} registers")
    return found


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
    threads = collections.Counter()
    for path in launched_files:
        for kernel, count in re.findall(r"^\((\w+).* (\d+)$", path.read_text(), re.M):
            threads[kernel] = max(threads[kernel], int(count))
    missing = sorted(kernels - threads.keys())
    if missing:
        sys.exit("no test of the race check launches: " + ", ".join(missing))
    if found := too_many_registers(folder / "kernel_budget.txt", threads):
        sys.exit(f"a block has {REGISTERS_OF_BLOCK} registers at most: " + "; ".join(found))
    print(f"the race check has run all {len(kernels)} kernels")


if __name__ == "__main__":
    main()
