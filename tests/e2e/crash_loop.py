#!/usr/bin/env python3
"""Kills `triphase run` and `score` at random instants, resumes them, and compares the result with a run
that was never disturbed.

    crash_loop.py TRIPHASE [--kills 56] [--lines 200] [--model DIR --prompts FILE] [--seed N]

Every few starts another kind of end: SIGKILL, SIGTERM, SIGINT twice. The kills are divided among kinds of
jobs (KINDS). Without --model it builds a tiny model and prompts as token ids. Exit 0 when the files are equal byte for byte. Standard library only.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bad"))

from bad_case import ModelFolder  # noqa: E402


# Less than the batch needs: KV moves to the host and back.
SMALL = ("--batch-size", "12", "--device-kv-memory", "40KiB", "--host-memory", "64MiB", "--prefill-chunk", "32")
PLAN = "two-plans.json"  # in the jobs' folder
KINDS = {
    "all on the device": ("run",),
    "KV on the host": ("run", *SMALL, "--policy", "flexgen"),
    "preempted requests": ("run", *SMALL, "--policy", "vllm", "--policy-option", "preemption=swap"),
    "phases": ("run", *SMALL, "--policy-option", "p1=0", "--policy-option", "alpha=0.9"),
    "swa": ("run", "--attention", "swa", "--kv-sparsity", "0.5"),
    "sparq, INT8": ("run", "--attention", "sparq", "--attention-option", "sparq.rank=4", "--attention-option",
                    "sparq.k=8", "--kv-dtype", "int8"),
    # Longer lines run after the others, under a second plan.
    "two plans": ("run", *SMALL, "--plan-force", "--plan", PLAN),
    "a shard": ("run", "--shard", "1/2"),
    "score": ("score",),
}


def write_requests(path, lines, generator):
    with open(path, "w", encoding="utf-8") as file:
        for line in range(lines):
            tokens = [generator.randrange(3, 32) for _ in range(generator.randrange(4, 40))]
            at = generator.randrange(1, len(tokens))
            file.write(json.dumps({"id": line, "context_tokens": tokens[:at], "continuation_tokens": tokens[at:]}) +
                       "\n")


def write_prompts(path, lines, generator):
    with open(path, "w", encoding="utf-8") as file:
        for line in range(lines):
            if line % 17 == 9:
                file.write("\n" if line % 2 else "not json\n")
                continue
            tokens = [generator.randrange(3, 32) for _ in range(generator.randrange(1, 12))]
            request = {"id": f"line {line}", "prompt_tokens": tokens,
                       "max_tokens": generator.randrange(1, 40), "temperature": line % 3 * 0.5}
            file.write(json.dumps(request) + "\n")


def write_two_plans(program, model, path):
    """A plan for short lines on the device, and one for longer lines with KV on the host."""
    subprocess.run([program, "plan", "--quiet", "--model", str(model), "--profile", "t4", "--batch-size", "12", "--input-len",
                    "12", "--output-len", "40", "--kv-dtype", "fp32", "--output", str(path)], check=True)  # fmt: skip
    plan = json.loads(path.read_text(encoding="utf-8"))
    longer = json.loads(json.dumps(plan))
    plan["schedule"]["kind"] = "device"
    longer["schedule"].update({"p1": 0, "alpha": 0.9, "device_tokens": 0})
    plan["longer_requests"] = {"above_tokens": 24, "plan": longer}
    path.write_text(json.dumps(plan), encoding="utf-8")


class Job:
    def __init__(self, program, kind, model, prompts, output):
        # --ignore-eos makes every line as long as it may be, so that there is time to be killed.
        mode, *extra = KINDS[kind]
        extra = [str(output.parent / PLAN) if option == PLAN else option for option in extra]
        ours = (["--requests", str(prompts)] if mode == "score" else
                ["--ignore-eos", "--seed", "7", "--prompts", str(prompts)])
        self.command = [program, mode, "--quiet", "--sync-every", "0.02s", "--model", str(model), *ours,
                        *(extra if "--batch-size" in extra else ["--batch-size", "4", *extra]), "--output", str(output)]
        self.output = output

    def finish(self):
        result = subprocess.run(self.command, stderr=subprocess.PIPE, check=False)
        if result.returncode not in (0, 1):
            raise SystemExit(f"exit {result.returncode}: {result.stderr.decode()}")
        return result.returncode

    def end_early(self, seconds, signals):
        """Whether the signals ended it (else it had finished before)."""
        process = subprocess.Popen(self.command, stderr=subprocess.PIPE)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            for number in signals:
                process.send_signal(number)
        _, errors = process.communicate(timeout=300)
        code = process.returncode
        if code < 0 and -code in signals:
            return True
        if code in (0, 1):
            return False
        raise SystemExit(f"exit {code} after {signals}: {errors.decode()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=56)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--prompts", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="triphase-crash-") as name:
        folder = pathlib.Path(name)
        model, prompts = options.model or folder / "model", options.prompts or folder / "in.jsonl"
        if not options.model:
            ModelFolder(model).llama()
        if not options.prompts:
            write_prompts(prompts, options.lines, generator)
        requests = folder / "requests.jsonl"
        write_requests(requests, 10 * options.lines, generator)
        if not options.model:
            write_two_plans(options.program, model, folder / PLAN)
        kinds = list(KINDS) if not options.model else ["all on the device"]
        for kind in kinds:
            lines = requests if kind == "score" else prompts
            kills = -(-options.kills // len(kinds))
            jobs, seconds = disturb(options.program, kind, model, lines, folder, kills, generator)
            print(f"{kind}: {kills} kills over {jobs} jobs, every file identical "
                  f"({seconds:.2f} s for an undisturbed run)")


def disturb(program, kind, model, prompts, folder, wanted_kills, generator):
    """Jobs of one kind until so many were killed: how many, and the seconds of an undisturbed one."""
    endings = [(signal.SIGKILL,), (signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT),
               (signal.SIGUSR1,)]
    reference = Job(program, kind, model, prompts, folder / "reference.jsonl")
    started = time.monotonic()
    reference_code = reference.finish()
    whole_run = time.monotonic() - started
    expected = reference.output.read_bytes()
    for path in folder.glob("reference.jsonl*"):
        path.unlink()

    kills = jobs = 0
    while kills < wanted_kills:
        jobs += 1
        if jobs > 100 * wanted_kills:
            raise SystemExit(f"{kind}: the job ends before it can be killed: give it more lines")
        job = Job(program, kind, model, prompts, folder / f"out{jobs}.jsonl")
        for _ in range(generator.randrange(1, 5)):
            if job.output.exists():
                break
            ending = endings[kills % len(endings)]
            kills += job.end_early(generator.uniform(0, 1.1) * whole_run, ending)
            if job.output.exists() and job.output.read_bytes() != expected:
                raise SystemExit(f"{kind}: {job.output} is there after {ending} and differs")
        code = job.finish()
        if code != reference_code:
            raise SystemExit(f"{kind}: exit {code} after kills, {reference_code} without")
        if job.output.read_bytes() != expected:
            raise SystemExit(f"{kind}: the output of job {jobs} differs after kills")
        left = sorted(path.name for path in folder.glob(job.output.name + ".*"))
        wanted = [job.output.name + suffix for suffix in (".manifest.json", ".summary.json")]
        if left != wanted:
            raise SystemExit(f"{kind}: left beside the output: {left}")
        for path in folder.glob(job.output.name + "*"):
            path.unlink()
    return jobs, whole_run


if __name__ == "__main__":
    main()
