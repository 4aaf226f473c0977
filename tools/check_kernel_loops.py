#!/usr/bin/env python3
"""Counts the instructions of the CUDA kernels' hot loops, and compares them with a committed budget.

Usage: check_kernel_loops.py --objects DIR --sources DIR --compiler "nvcc 13.0.88" [--update | --list NAME]

DIR/hot_loops.toml of the sources names the loops: the kernel, how many bytes (or products on tensor cores) one turn
is there for, and how often a turn runs which function, where that is not once. Line information in the objects
(-lineinfo) says which function an instruction belongs to, inlined or not; so the sources must be those that were
compiled.

A turn's instructions, by the unit of the SM that runs them, give the clocks it takes at least; its bytes give those
that the memory takes. The ratio is the predicted share of the roofline. It knows nothing of latency: a kernel with too
few warps or too many waits is slower. Beside it stands how many warps an SM of an H100 has room for, by registers and
static shared memory (kernel_budget.txt), and by the dynamic shared memory that hot_loops.toml says.

Of a loop the budget (loop_budget.txt) has the instructions a turn, and no loop may spill or call (what does not change
in a loop may have been spilled before it). Exit 1 where a loop
needs more than its line, or has none. With another compiler than the budget's the comparison is printed but never
fails. Without nvdisasm and cuobjdump nothing is checked: tools/setup.sh --checks gets them, the CUDA toolkit has them,
or TRIPHASE_DISASSEMBLER names their folder.

--list prints the instructions of a loop by function, most first.
"""

import argparse
import bisect
import collections
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_kernel_budget import read_budget, report, short_names

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None

ARCHITECTURE = "sm_90a"
# Warp instructions that an SM starts in a clock: four schedulers, one each.
ISSUE = 4.0
# Warp instructions a clock of each unit of an H100's or H200's SM (CUDA C++ programming guide, throughput of arithmetic
# instructions). Loads, stores and shuffles share one unit, which moves 128 bytes a clock. mma.m16n8k16 reaches about
# 60 % of the tensor cores' rate, 1.04 such products a clock. A warp's share of wgmma.m64nNk16 counts as N / 8 of them,
# at the full rate.
UNITS = {"fma": 4.0, "alu": 2.0, "memory": 1.0, "special": 0.5, "tensor": 0.6, "warpgroup": 1.04, "other": 4.0}
# Of an H100's SM.
REGISTERS, SHARED_BYTES, MOST_WARPS, MOST_BLOCKS = 65536, 228 * 1024, 64, 32
SYSTEM_BYTES = 1024  # of each block's shared memory
# The first that matches.
CLASSES = (
    ("spill", r"STL"),
    ("call", r"CALL"),
    ("warpgroup", r"HGMMA"),
    ("tensor", r"HMMA|IMMA"),
    ("memory", r"LD[GSCL]|LD\b|ST[GS]|ST\b|ATOM|RED\b|SHFL"),
    ("special", r"MUFU|F2F\.|I2F|F2I|FRND|POPC|FLO|BREV|S2R"),
    ("fma", r"FFMA|FMUL|FADD|IMAD|HFMA2|HADD2|HMUL2"),
    ("alu", r"IADD|LOP|PLOP|SHF|LEA|PRMT|SEL|FSEL|ISETP|FSETP|FMNMX|IMNMX|VIMNMX|MOV|IABS|LEPC|F2FP|VOTE|R2P|P2R|I2I"
            r"|HSET|HMNMX|SGXT|BMSK|CS2R|VIADD|FCHK|FSET|VABSDIFF|I2FP|F2IP"),
)  # fmt: skip
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.x]*)(.*)")
LINE = re.compile(r'//## File "([^"]+)", line (\d+)')
LABEL = re.compile(r"^(\.L_\w+):")
TARGET = re.compile(r"\(?(\.L_\w+)\)?")
FUNCTION = re.compile(r"^( *)(?:static )?(?:template <.*> )?(?:__device__|__global__|__host__)")


class Failure(Exception):
    """One line for stderr."""


def class_of(name):
    for unit, pattern in CLASSES:
        if re.match(pattern, name):
            return unit
    return "other"


@functools.cache
def functions_of(path):
    """First lines of the file's device functions, and (name, last line) of each."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return [], []
    starts, functions = [], []
    for at, line in enumerate(lines):
        match = FUNCTION.match(line)
        if not match:
            continue
        head = " ".join(lines[at : at + 4])
        name = re.search(r"(\w+)\((?![^()]*kWarpSize)", re.sub(r"__launch_bounds__\(.*?\)\)?\)?\s", "", head))
        end = next((i for i in range(at, len(lines)) if lines[i].startswith(match[1] + "}")), at)
        starts.append(at + 1)
        functions.append((name[1] if name else "?", end + 1))
    return starts, functions


@functools.cache
def function_at(path, line):
    starts, functions = functions_of(path)
    at = bisect.bisect_right(starts, line) - 1
    if at < 0 or line > functions[at][1]:
        return "?"
    return functions[at][0]


class Unchecked(Exception):
    """Why nothing can be checked here."""


@functools.cache
def in_checkout(path, sources):
    """A source's path in this checkout: a compiler cache's object names the one where it was compiled."""
    _, found, rest = path.rpartition("/kernels/cuda/")
    return str(sources.resolve() / rest) if found else path


class Instruction:
    def __init__(self, name, places, target):
        self.name = name
        self.unit = class_of(name)
        wide = re.search(r"\.(64|128)\b|\.M88\.(2|4)\b", name) if self.unit == "memory" else None
        self.clocks = {None: 1, "64": 2, "128": 4, "2": 2, "4": 4}[wide and (wide[1] or wide[2])]
        if self.unit == "warpgroup":
            self.clocks = int(re.search(r"\.64x(\d+)x16\b", name)[1]) // 8
        self.functions = [function_at(path, line) for path, line in places]  # the innermost first
        # Whose code this is: not a helper's that wraps an instruction.
        self.owner = next((function for function, (path, _) in zip(self.functions, places)
                           if "/kernels/cuda/" in path and "dialect" not in path), "?")
        self.target = target  # label of a branch


class Kernel:
    """A kernel's instructions in order, and its loops as (first, last) indices."""

    def __init__(self):
        self.instructions = []
        self.labels = {}

    def loops(self):
        found = {}
        for at, instruction in enumerate(self.instructions):
            to = self.labels.get(instruction.target)
            if instruction.name.startswith("BRA") and to is not None and to < at:
                found[to] = max(at, found.get(to, at))  # continues and ends of one loop
        return sorted(found.items(), key=lambda loop: (loop[0], -loop[1]))


def disassemble(tools, obj, sources, folder):
    """Kernels by mangled name."""
    for old in folder.iterdir():
        old.unlink()
    subprocess.run([tools["cuobjdump"], "-xelf", ARCHITECTURE, obj.resolve()], cwd=folder, check=False, capture_output=True)
    kernels = {}
    for cubin in sorted(folder.glob(f"*{ARCHITECTURE}.cubin")):
        text = subprocess.run([tools["nvdisasm"], "-c", "-gi", cubin], check=True, capture_output=True, text=True).stdout
        kernel, places, fresh = None, [], True
        for line in text.splitlines():
            if line.startswith(".text."):
                kernel = kernels[line.removeprefix(".text.").rstrip(":")] = Kernel()
                places, fresh = [], True
            elif kernel is None:
                continue
            elif match := LINE.search(line):
                if fresh:
                    places, fresh = [], False
                places.append((in_checkout(match[1], sources), int(match[2])))
            elif match := LABEL.match(line):
                kernel.labels[match[1]] = len(kernel.instructions)
            elif match := INSTRUCTION.match(line):
                fresh = True
                target = TARGET.search(match[3]) if match[2].startswith("BRA") else None
                kernel.instructions.append(Instruction(match[2], places, target and target[1]))
    return kernels


def root_of(kernel, loops, function):
    """The smallest loop that holds nearly all of the function: the compiler may take some out."""
    of = [at for at, instruction in enumerate(kernel.instructions) if function in instruction.functions]
    if not of:
        return None
    holds = [(last - first, (first, last)) for first, last in loops
             if sum(first <= at <= last for at in of) >= 0.8 * len(of)]
    return min(holds)[1] if holds else None


Counts = collections.namedtuple("Counts", "issued units functions")


def count_loop(spec, kernel):
    """A turn's instructions, what each unit has of them, and instructions by (function, unit)."""
    loops = kernel.loops()
    root = root_of(kernel, loops, spec["around"])
    if root is None:
        raise Failure(f"{spec['name']}: no loop around {spec['around']} in {spec['kernel']}")
    times = dict(spec.get("times", {}))
    turns = [1.0] * len(kernel.instructions)
    seen = collections.Counter()
    for first, last in loops:
        if (first, last) == root or not (root[0] <= first and last <= root[1]):
            continue
        owner = kernel.instructions[last].owner
        weight = 1.0
        for function in kernel.instructions[last].functions:
            weight *= times.get(function, 1.0) > 0
        if weight == 0:
            continue
        counts = spec.get("loops", {}).get(owner, [])
        if seen[owner] >= len(counts):
            names = ", ".join(kernel.instructions[last].functions)
            raise Failure(f"{spec['name']}: how many turns has loop {seen[owner] + 1} of {owner} ({names})? "
                          "hot_loops.toml does not say")
        for at in range(first, last + 1):
            turns[at] *= counts[seen[owner]]
        seen[owner] += 1
    issued, units, functions = 0.0, collections.Counter(), collections.Counter()
    for at in range(root[0], root[1] + 1):
        instruction = kernel.instructions[at]
        weight = turns[at]
        for function in dict.fromkeys(instruction.functions):
            weight *= times.get(function, 1.0)
        issued += weight
        units[instruction.unit] += weight * instruction.clocks
        functions[(instruction.owner, instruction.unit)] += weight
    return Counts(issued, units, functions)


def clocks_of(counts):
    """Of an SM, for a turn: the busiest unit's, or the schedulers'."""
    issued, units = counts.issued, counts.units
    return max([issued / ISSUE] + [units[unit] / rate for unit, rate in UNITS.items()])


def share_of(spec, machine, counts):
    """Predicted share of what the memory, or the tensor cores, allow."""
    if "bytes" in spec:
        allowed = spec["bytes"] / machine["bytes_per_clock"]
    else:
        allowed = spec["products"] / machine["products_per_clock"]
    return allowed / max(allowed, clocks_of(counts))


def warps_of(spec, budget):
    """That an SM has room for. Its quarters have a share of the registers each, and give them in units of 256."""
    registers, _, static = budget[(ARCHITECTURE, spec["kernel"])]
    warps = spec["threads"] // 32
    each_quarter = REGISTERS // 4 // (-(-registers * 32 // 256) * 256)
    by_registers = 4 * each_quarter // warps
    by_shared = SHARED_BYTES // (static + spec["shared"] + SYSTEM_BYTES)
    return warps * min(by_registers, by_shared, MOST_WARPS // warps, MOST_BLOCKS)


def find_tools():
    fetched = sorted(Path(__file__).resolve().parents[1].glob("build/disassembler/nvidia/*/bin"))
    folders = [os.environ.get("TRIPHASE_DISASSEMBLER"), *map(str, fetched)]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folders.append(str(Path(nvcc).resolve().parent))
    path = os.pathsep.join([folder for folder in folders if folder] + [os.environ.get("PATH", "")])
    found = {name: shutil.which(name, path=path) for name in ("nvdisasm", "cuobjdump")}
    return found if all(found.values()) else None


def count_all(specs, tools, objects, sources):
    """Counts by the loop's name."""
    counted = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted({spec["source"] for spec in specs}):
            obj = next(iter(objects.rglob(f"{source}.o")), None)
            if obj is None:
                raise Failure(f"no {source}.o in {objects}")
            kernels = disassemble(tools, obj, sources, Path(folder))
            if not kernels:
                raise Unchecked(f"no code for {ARCHITECTURE} in {obj.name}")
            names = {short: kernels[mangled] for mangled, short in short_names(sorted(kernels)).items()}
            for spec in (spec for spec in specs if spec["source"] == source):
                if spec["kernel"] not in names:
                    raise Failure(f"{spec['name']}: {source} has no kernel {spec['kernel']}, it has {', '.join(names)}")
                counted[spec["name"]] = count_loop(spec, names[spec["kernel"]])
    return counted


def budget_line(spec, machine, counts, kernels):
    parts = " ".join(f"{unit}={counts.units[unit]:.0f}" for unit in UNITS)
    return (f"{counts.issued:.0f} {clocks_of(counts):.0f} {share_of(spec, machine, counts):.2f} "
            f"{warps_of(spec, kernels)} {spec['name']}: {parts}")


def check(specs, counted, budget):
    allowed = {}
    for line in budget.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            issued, _, _, _, rest = line.split(" ", 4)
            allowed[rest.rsplit(":", 1)[0]] = int(issued)
    problems = []
    for spec in specs:
        name, issued = spec["name"], counted[spec["name"]].issued
        if name not in allowed:
            problems.append(f"{name}: no budget; a turn is {issued:.0f} instructions")
        elif issued > allowed[name] + 0.5:
            problems.append(f"{name}: a turn is {issued:.0f} instructions; budget {allowed[name]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=Path, required=True, help="where the kernels' objects are")
    parser.add_argument("--sources", type=Path, required=True, help="kernels/cuda")
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--update", action="store_true", help="write the budget")
    parser.add_argument("--list", metavar="NAME", help="the instructions of one loop by function")
    arguments = parser.parse_args()
    tools = find_tools()
    if tools is None or tomllib is None:
        what = "no nvdisasm and cuobjdump here (tools/setup.sh --checks)" if tools is None else "Python before 3.11"
        print(f"kernel loops: not checked: {what}")
        return 0
    with open(arguments.sources / "hot_loops.toml", "rb") as file:
        description = tomllib.load(file)
    specs, machine = description["loop"], description["machine"]
    kernels = read_budget(arguments.sources / "kernel_budget.txt")
    if arguments.list:
        specs = [spec for spec in specs if spec["name"] == arguments.list]
    try:
        counted = count_all(specs, tools, arguments.objects, arguments.sources)
        for spec in specs:
            units = counted[spec["name"]].units
            if units["spill"] or units["call"]:
                raise Failure(f"{spec['name']}: {units['spill']:.0f} spills and {units['call']:.0f} calls a turn")
    except Unchecked as reason:
        print(f"kernel loops: not checked: {reason}")
        return 0
    except Failure as failure:
        print(f"kernel loops: {failure}", file=sys.stderr)
        return 1
    if arguments.list:
        for spec in specs:
            print(budget_line(spec, machine, counted[spec["name"]], kernels))
            for (function, unit), count in counted[spec["name"]].functions.most_common():
                print(f"{count:9.1f} {unit:8} {function}")
        return 0
    budget = arguments.sources / "loop_budget.txt"
    if arguments.update:
        lines = [f"# {arguments.compiler}",
                 "# Of a turn: instructions, clocks of an SM at least, predicted share of the roofline, warps of an SM, loop: by unit",
                 *(budget_line(spec, machine, counted[spec["name"]], kernels) for spec in specs)]
        budget.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{budget}: {len(specs)} loops")
        return 0
    problems = check(specs, counted, budget)
    if problems:
        return report("kernel loops", problems, budget, arguments.compiler, "this again with --update")
    print(f"kernel loops: {len(specs)} within their budget")
    return 0


if __name__ == "__main__":
    sys.exit(main())
