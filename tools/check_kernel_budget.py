#!/usr/bin/env python3
"""Compares what ptxas reports per kernel with a committed budget.

Usage: check_kernel_budget.py --reports DIR --budget FILE --compiler "nvcc 13.0.88" [--update]

The budget file has one line per kernel and architecture: architecture, registers, bytes of spill
stores and loads, bytes of static shared memory, kernel. Its first line names the compiler it was made with; with another compiler
the comparison is printed but never fails, because register allocation differs. --update writes it.
Exit 1 when a kernel exceeds its line or has none.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.* (\d+) bytes smem)?")
# Shuffles that ptxas could not prove to be reached by whole warps: see uniform_warp_id() in dialect.h.
SHUFFLE_CALL = re.compile(r"Function properties for (__cuda_sm70_shflsync\w+)")


def short_names(names: list[str]) -> dict[str, str]:
    """Kernels as the source writes them, without namespaces and parameters, by mangled name."""
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = {}
    for name, text in zip(names, shown.stdout.splitlines()):
        text = text.replace("triphase::cuda::", "").replace("(anonymous namespace)::", "").removeprefix("void ")
        depth, end = 0, len(text)  # the first parenthesis outside template arguments
        for at, letter in enumerate(text):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                end = at
                break
        short[name] = text[:end]
    return short


def read_budget(path: Path) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(registers, spill bytes, static shared bytes) by architecture and kernel."""
    budget = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            arch, registers, spill, shared, name = line.split(" ", 4)
            budget[(arch, name)] = (int(registers), int(spill), int(shared))
    return budget


def read_reports(folder: Path) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(registers, spill bytes, static shared bytes) by architecture and kernel."""
    mangled = {}
    for path in sorted(folder.rglob("*.ptxas")):
        key, spill = None, 0
        report = path.read_text(encoding="utf-8")
        if SHUFFLE_CALL.search(report):
            print(f"kernel budget: note: {path.name}: some shuffles are calls")
        for line in report.splitlines():
            if match := ENTRY.search(line):
                key, spill = (match[2], match[1]), 0
            elif match := SPILL.search(line):
                spill = int(match[2]) + int(match[3])
            elif (match := USED.search(line)) and key is not None:
                mangled[key] = (int(match[1]), spill, int(match[2] or 0))
                key = None
    readable = short_names(sorted({name for _, name in mangled}))
    return {(arch, readable[name]): value for (arch, name), value in mangled.items()}


def report(what: str, problems: list[str], budget: Path, compiler: str, hint: str) -> int:
    """The exit code: problems of another compiler than the budget's are printed, but no failure."""
    for problem in problems[:10]:
        print(f"{what}: {problem}", file=sys.stderr)
    if len(problems) > 10:
        print(f"{what}: and {len(problems) - 10} more", file=sys.stderr)
    made_with = budget.read_text(encoding="utf-8").splitlines()[0]
    if made_with != f"# {compiler}":
        print(f"{what}: made with '{made_with[2:]}', this is '{compiler}': not enforced", file=sys.stderr)
        return 0
    print(f"{what}: if the growth is worth it, run {hint}", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--budget", type=Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()

    found = read_reports(arguments.reports)
    if not found:
        print("check_kernel_budget: no ptxas report found", file=sys.stderr)
        return 1
    if arguments.update:
        lines = [f"# {arguments.compiler}", "# architecture registers spill-bytes static-shared-bytes kernel"]
        lines += [f"{arch} {regs} {spill} {shared} {name}" for (arch, name), (regs, spill, shared) in sorted(found.items())]
        arguments.budget.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{arguments.budget}: {len(found)} kernels")
        return 0

    budget = read_budget(arguments.budget)
    archs = {arch for arch, _ in budget}
    problems = []
    for (arch, name), used in sorted(found.items()):
        if arch not in archs:
            continue  # an architecture nobody committed a budget for
        text = "{} registers, {} bytes spilled, {} static shared bytes".format(*used)
        if (arch, name) not in budget:
            problems.append(f"{name} ({arch}): no budget; {text}")
        elif any(one > allowed for one, allowed in zip(used, budget[(arch, name)])):
            problems.append(f"{name} ({arch}): {text}; budget {', '.join(map(str, budget[(arch, name)]))}")
    if problems:
        return report("kernel budget", problems, arguments.budget, arguments.compiler,
                      f"tools/check_kernel_budget.py --update with --reports {arguments.reports} --budget {arguments.budget} "
                      f"--compiler '{arguments.compiler}'")
    print(f"kernel budget: {len(found)} kernels within it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
