#!/usr/bin/env python3
"""Runs triphase on every case of the hostile corpus and checks how it ends.

    run_bad.py TRIPHASE [--only TEXT] [--keep FOLDER]

Checked for each case: exit code, time, peak memory; on failure exactly one `triphase: error:` line
with a code in brackets, of limited length, without control bytes, the expected texts in it, and no
output file; on success the complete output. Never a signal, never a traceback.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import other_rows  # noqa: E402
from make_corpus import build_case, load_cases  # noqa: E402

MAX_LINE = 2000
SANITIZED = os.environ.get("TRIPHASE_SANITIZED", "")  # memory limits mean nothing there


def expand(words, folder):
    paths = {"MODEL": folder / "model", "PROMPTS": folder / "prompts.jsonl",
             "OUT": folder / "out" / "out.jsonl", "FOLDER": folder}
    return [str(paths.get(word, word)) for word in words]


def allowed_seconds(case):
    return case.seconds * (10 if SANITIZED else 1)


def outputs(folder):
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


def prepare(case, program, folder):
    """Runs what comes before; the outputs that there are then."""
    (folder / "out").mkdir(exist_ok=True)
    for arguments in case.before:
        subprocess.run([program, *expand(arguments, folder)], stdin=subprocess.DEVNULL, capture_output=True,
                       cwd=folder, check=False)
    return outputs(folder)


def run(case, program, folder):
    """(exit code or -signal, stderr bytes, seconds of the processor, peak MiB)."""
    def limit():
        for kind, value in case.limits.items():
            resource.setrlimit(kind, (value, value))

    with open(folder / "stderr", "wb") as errors, open(folder / "stdout", "wb") as output:
        process = subprocess.Popen([program, *expand((*case.args, *case.extra), folder)], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=errors, cwd=folder, env={**os.environ, **case.env},
                                   preexec_fn=limit if case.limits else None)
        # What hangs uses no processor: it ends by the clock, far from what a busy machine takes.
        deadline = time.monotonic() + 10 * allowed_seconds(case)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return process.returncode, (folder / "stderr").read_bytes(), seconds, usage.ru_maxrss / 1024


def check_text(case, errors):
    problems = []
    bad_bytes = sorted({byte for byte in errors if (byte < 32 and byte != 10) or byte == 127})
    if bad_bytes or b"\xc2\x9b" in errors:
        problems.append(f"control bytes on stderr: {bad_bytes}")
    text = errors.decode("utf-8", "replace")
    if "\ufffd" in text:
        problems.append("invalid UTF-8 on stderr")
    problems += [f"stderr lacks {wanted!r}" for wanted in case.stderr if wanted not in text]
    problems += [f"stderr has {refused!r}" for refused in case.absent if refused in text]
    lines = [line for line in text.splitlines() if line.startswith("triphase: error:")]
    if case.exit in (0, 1):
        if lines:
            problems.append("an error line although the run was to succeed")
        return problems
    if not case.args:  # a usage line instead
        return problems
    if len(lines) != 1:
        problems.append(f"{len(lines)} error lines, expected one")
    for line in lines:
        if len(line.encode()) > MAX_LINE:
            problems.append(f"an error line of {len(line.encode())} bytes")
        if not re.search(r" \[E-[A-Z0-9]+(-[A-Z0-9]+)+\]$", line):
            problems.append("no error code at the end of the line")
    return problems


def check_output(case, folder, earlier):
    text = (folder / "stdout").read_text(errors="replace")
    missing = [f"stdout lacks {wanted!r}" for wanted in case.stdout if wanted not in text]
    if missing:
        return missing
    left = outputs(folder)
    if case.exit not in (0, 1):
        changed = sorted(name for name in left.keys() | earlier.keys() if left.get(name) != earlier.get(name)
                         and (name == "out.jsonl" or not case.leaves_output))
        return [f"outputs that a refusal made, changed or removed: {changed}"] if changed else []
    if case.args[0] not in ("run", "score") or "--dry-run" in case.extra or "--help" in case.args:
        return []
    if "out.jsonl" not in left:
        return [f"no output; there is {sorted(left)}"]
    records = [json.loads(line) for line in (folder / "out" / "out.jsonl").read_text().splitlines()]
    if len(records) != case.records:
        return [f"{len(records)} records, expected {case.records}"]
    written = (folder / "out" / "out.jsonl").read_text()
    return [f"the output lacks {wanted!r}" for wanted in case.output if wanted not in written]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("triphase")
    parser.add_argument("--only", default="", help="cases whose id contains this text")
    parser.add_argument("--keep", type=pathlib.Path, help="leave the corpus in this new folder")
    options = parser.parse_args()
    program = shutil.which(options.triphase)
    if program is None:
        raise SystemExit(f"no program {options.triphase}")
    program = os.path.abspath(program)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    root = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="triphase-bad-"))
    every_case = load_cases()
    wrong_rows = other_rows.problems(every_case)
    for problem in wrong_rows:
        print(f"FAILED {problem}")
    failed = 0
    cases = [case for case in every_case if options.only in case.id and (case.sanitized or not SANITIZED)]
    try:
        for case in cases:
            folder = root / case.id
            build_case(case, folder)
            earlier = prepare(case, program, folder)
            code, errors, seconds, megabytes = run(case, program, folder)
            problems = [] if code == case.exit else [f"exit {code}, expected {case.exit}"]
            problems += check_text(case, errors) + check_output(case, folder, earlier)
            if seconds > allowed_seconds(case):
                problems.append(f"took {seconds:.1f} s of the processor, limit {allowed_seconds(case)} s")
            if megabytes > case.megabytes and not SANITIZED:
                problems.append(f"peak memory {megabytes:.0f} MiB, limit {case.megabytes} MiB")
            if problems:
                failed += 1
                print(f"FAILED {case.id}: {'; '.join(problems)}")
                print("  " + errors.decode("utf-8", "replace")[:600].replace("\n", "\n  "))
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(f"{len(cases) - failed} of {len(cases)} hostile cases ended as they must")
    if not cases:
        raise SystemExit("no case matches")
    return 1 if failed or wrong_rows else 0


if __name__ == "__main__":
    sys.exit(main())
