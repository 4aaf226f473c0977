#!/usr/bin/env python3
"""Changes one place of the code at a time and tells which changes no test notices.

    tools/lab/mutate.py SCRATCH --room scheduler --count 50 [--seed 1] [--results FILE]
    tools/lab/mutate.py SCRATCH --again            # tries the survivors again, but for equivalent ones
    tools/lab/mutate.py --report [--results FILE]  # tried, killed and survived by room

SCRATCH is a git worktree of this repository that is made if missing and checked out at HEAD: mutants are made
there. A room is a list of files and of the test programs that cover them, the quickest first. Of all places of a
room where an operator fits, a sample is drawn by the seed. A mutant that does not compile does not count; one
whose test program fails, crashes or takes far longer than it should is killed. Results are JSON lines, the last
line of a mutant holds, and a run goes on where the last one stopped. A survivor's "why" is written by hand.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/mutants.jsonl"

ROOMS = {
    "placement": (
        ["scheduler/placement/*.cpp", "scheduler/batch_planner.cpp", "scheduler/memory_plan.cpp"],
        ["placement_test", "scheduler_test", "simulator_test"],
    ),
    "kv": (["scheduler/kv/*.cpp", "scheduler/kv/kv_book.h"], ["kv_book_test", "placement_test"]),
    "cost": (
        ["scheduler/cost/grid_table.cpp", "scheduler/cost/step_cost.cpp", "scheduler/cost/model_costs.cpp"],
        ["cost_test", "planner_test"],
    ),
    "planner": (
        ["scheduler/planner/*.cpp", "scheduler/flexgen/*.cpp"],
        ["planner_test", "plan_file_test", "flexgen_search_test", "simulator_test"],
    ),
    "simulator": (["scheduler/simulator/*.cpp"], ["simulator_test", "simulator_agreement_test"]),
    "memory": (
        ["memory/kv/*.cpp", "memory/memory_pool.cpp", "memory/transfer/*.cpp"],
        ["memory_test", "placement_invariance_test", "recompute_test", "job_property_test", "emulated_device_test"],
    ),
    "job": (
        [f"runtime/job/{name}.cpp" for name in (
            "output_file", "record_scan", "record_ledger", "record_check", "record_window", "manifest", "merge",
            "file_ops", "locked_part", "output_record", "command_files")],
        ["job_interrupted_output_test", "job_output_record_test", "job_merge_test", "job_reports_test",
         "job_command_files_test", "job_output_file_test", "job_fault_injection_test", "job_power_cut_test"],
    ),
    "kernels": (
        ["kernels/cpu/*.cpp"],
        ["triphase_kernels_test", "attention_methods_test", "emulated_device_test"],
    ),
    "cuda": (
        ["kernels/cuda/*.cu", "kernels/cuda/*_tile.h", "kernels/cuda/gather_*.h", "kernels/cuda/select_row.h",
         "kernels/cuda/block_reduce.h", "kernels/cuda/prefill_rows.h"],
        [],  # programs_of()
    ),
}

# Which emulated test launches a CUDA kernel by itself; those of no name here: ops.
CUDA_PARTS = {
    "attention": "gather_|merge_states|plan_splits",
    "kv": "kv_append|kv_quantize|recompute|stage_rows",
    "sample": "sample",
    "selection": "clusters|kept_tokens|kv_channels|prefill_colsum|prefill_log_sums|resolve|score_|select_|sparq_",
    "seam": "page_bounds|input_codes|token_ranges|value_mean|weight_window",
}

# Name, what it finds, what it puts there. clang-format puts blanks around binary operators.
OPERATORS = [
    ("compare", r" <= ", " < "), ("compare", r" < ", " <= "), ("compare", r" >= ", " > "),
    ("compare", r"(?<!-) > ", " >= "), ("equal", r" == ", " != "), ("equal", r" != ", " == "),
    ("logic", r" && ", " || "), ("logic", r" \|\| ", " && "), ("not", r"(?<=\()!(?=\w)", ""),
    ("arithmetic", r" \+ ", " - "), ("arithmetic", r" - ", " + "), ("arithmetic", r" \* (?!const)", " / "),
    ("arithmetic", r" / ", " * "), ("assign", r" \+= ", " -= "), ("assign", r" -= ", " += "),
    ("extreme", r"std::max\b", "std::min"), ("extreme", r"std::min\b", "std::max"),
    ("constant", r"(?<=[ (])0(?=[;,) ])", "1"), ("constant", r"(?<=[ (])1(?=[;,) ])", "2"),
    ("constant", r"\b0\.0\b", "1.0"), ("constant", r"\b1\.0\b", "2.0"), ("constant", r"\btrue\b", "false"),
    ("constant", r"\bfalse\b", "true"), ("round", r"std::ceil\b", "std::floor"), ("round", r"std::floor\b", "std::ceil"),
    ("dropped", r"^ +(?!return|throw|const |auto |static |using |case |if |for |while |else|\}|struct |std::\w+<.*> \w+)"
                r"[\w:.>\-\[\]*]+(\(.*\)| [-+*/]?= .*);$", ";"),
    ("dropped", r"^ +return;$", ";"), ("dropped", r"\bcontinue;", ";"), ("dropped", r"\bbreak;", ";"),
]  # fmt: skip
SKIPPED = re.compile(r'^\s*(//|#|static_assert|template|using |TRIPHASE_CHECK|throw )|fmt::format|"|\boperator\b|'
                     r"HWY_|TRIPHASE_DCHECK|reserve\(")  # fmt: skip


def sites(tree, room):
    """Every mutant of a room: file, line from 0, column, operator, old line, new line."""
    for pattern in ROOMS[room][0]:
        for path in sorted(tree.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines()):
                code = line.split("//")[0].rstrip()
                if SKIPPED.search(code):
                    continue
                for name, pattern_text, new in OPERATORS:
                    for match in re.finditer(pattern_text, code):
                        changed = code[: match.start()] + new + code[match.end() :]
                        yield str(path.relative_to(tree)), number, name, line, changed


def programs_of(room, file, line):
    if room != "cuda":
        return ROOMS[room][1]
    name = pathlib.Path(file).name
    part = next((part for part, names in CUDA_PARTS.items() if re.match(names, name)), "ops")
    # All refusals are in ops.
    programs = [f"emulated_{part}_test", "emulated_ops_test", "emulated_seam_test"]
    # What lacks an order may compute the same all the same.
    if re.search("LAUNCH|sync", line):
        programs.append(f"race_check_emulated_{part}_test")
    return list(dict.fromkeys(programs))


def key(room, file, old, new):
    return f"{room}|{file}|{old.strip()}|{new.strip()}"


def read_results(path):
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found[key(entry["room"], entry["file"], entry["old"], entry["new"])] = entry
    return found


def report(found):
    rooms = collections.defaultdict(collections.Counter)
    for entry in found.values():
        rooms[entry["room"]][entry["result"]] += 1
        rooms[entry["room"]]["equivalent"] += entry["result"] == "survived" and "equivalent" in entry.get("why", "")
    print(f"{'room':12} {'tried':>6} {'killed':>6} {'survived':>8} {'of them equivalent':>18} {'killed of the rest':>18}")
    for name, count in [*sorted(rooms.items()), ("all", sum(rooms.values(), collections.Counter()))]:
        tried = count["killed"] + count["survived"]
        different = tried - count["equivalent"]
        share = f"{100 * count['killed'] / different:.0f} %" if different else "-"
        print(f"{name:12} {tried:6} {count['killed']:6} {count['survived']:8} {count['equivalent']:18} {share:>18}")


class Scratch:
    """A worktree with a build, in which one file at a time is wrong."""

    def __init__(self, tree, jobs):
        self.tree, self.jobs = tree, jobs
        head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        commit = head.stdout.strip()
        if not (tree / ".git").exists():
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "--quiet", "--force", "--detach", commit], check=True)
        self.build = tree / "build/mutants"
        subprocess.run(["cmake", "-S", tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DTRIPHASE_CUDA=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"],
                       stdout=subprocess.DEVNULL, check=True)  # fmt: skip
        self.limits = {}

    def make(self, program, cached=True):
        # Mutants would only fill the compiler's cache.
        env = {**os.environ, "CCACHE_BASEDIR": str(self.tree), "CCACHE_NOHASHDIR": "1"}
        if not cached:
            env["CCACHE_DISABLE"] = "1"
        return subprocess.run(["ninja", "-C", self.build, f"-j{self.jobs}", program], env=env, capture_output=True)

    def test(self, program, limit):
        """Whether the program passes within so many seconds."""
        env = {**os.environ, "GTEST_FAIL_FAST": "1", "GTEST_BRIEF": "1"}
        try:
            # The race check writes there which kernels it launched.
            done = subprocess.run([self.build / "bin" / program, os.devnull], env=env, cwd=self.build, timeout=limit,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def prepare(self, programs):
        for program in programs:
            if program in self.limits:
                continue
            if self.make(program).returncode:
                sys.exit(f"{program} does not build without a mutant")
            start = time.monotonic()
            if not self.test(program, 600):
                sys.exit(f"{program} fails without a mutant")
            self.limits[program] = 10 + 6 * (time.monotonic() - start)

    def judge(self, programs, file, number, new):
        """("killed", program), ("survived", "") or ("uncompilable", "")."""
        path = self.tree / file
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        lines[number] = new + "\n"
        path.write_text("".join(lines))
        try:
            for program in programs:
                if self.make(program, cached=False).returncode:
                    return "uncompilable", ""
                if not self.test(program, self.limits[program]):
                    return "killed", program
            return "survived", ""
        finally:
            path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", nargs="?", type=pathlib.Path)
    parser.add_argument("--room", choices=sorted(ROOMS), action="append", default=[])
    parser.add_argument("--count", type=int, default=50, help="mutants that compile, by room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    found = read_results(args.results)
    if args.report:
        return report(found)
    if args.scratch is None:
        parser.error("SCRATCH is missing")
    scratch = Scratch(args.scratch.resolve(), args.jobs)
    for room in args.room or sorted(ROOMS):
        drawn = list(sites(scratch.tree, room))
        random.Random(f"{args.seed} {room}").shuffle(drawn)
        counted = 0
        for file, number, operator, old, new in drawn:
            name = key(room, file, old, new)
            before = found.get(name, {}).get("result")
            equivalent = "equivalent" in found.get(name, {}).get("why", "")
            if before != "survived" or equivalent if args.again else before is not None:
                counted += before in ("killed", "survived")
                continue
            if counted >= args.count and not args.again:
                break
            programs = programs_of(room, file, old)
            scratch.prepare(programs)
            result, program = scratch.judge(programs, file, number, new)
            counted += result != "uncompilable"
            entry = {"room": room, "file": file, "operator": operator, "old": old.strip(), "new": new.strip(),
                     "result": result}  # fmt: skip
            if program:
                entry["by"] = program
            if result == "survived" and "why" in found.get(name, {}):
                entry["why"] = found[name]["why"]
            found[name] = entry
            with args.results.open("a") as out:
                out.write(json.dumps(entry) + "\n")
            print(f"{result:12} {program:22} {file}:{number + 1}: {new.strip()}", flush=True)
    report(found)


if __name__ == "__main__":
    main()
