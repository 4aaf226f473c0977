#!/usr/bin/env python3
"""Runs a table of command lines on two builds of triphase and compares what they write.

    tools/lab/compare_builds.py OLD_TRIPHASE NEW_TRIPHASE [--only REGEX] [--jobs N]
    tools/lab/compare_builds.py --list                    the table, as command lines

The rows are in tools/lab/compare_rows.py. Each runs in a folder of its own, once on each build. Compared are
exit codes, completions, scores and clusters byte for byte, and of JSON reports the fields listed here: those
that the job decides, not the clock. A row whose old build does not end as the table says fails too.

Exit 0: no difference; 1: differences, one line each; 2: misuse. Standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import signal
import string
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from compare_rows import ROWS, write_inputs  # noqa: E402

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / "models/shipped"
SECONDS = 600  # a command that takes longer has stopped making steps

# Of records in the OpenAI batch form: what no two jobs share.
OF_A_JOB = re.compile(rb'("created":)\d+|(?<=req_|mpl-)[0-9a-f]{16}')

SUMMARY = """
format command complete exit_code error emulated model.type model.fingerprint model.weights_dtype model.kv_dtype
attention.policy attention.tokens_attended_fraction attention.prompt_tokens_attended_fraction
attention.decode_read_bytes.attended attention.decode_read_bytes.dense attention.calibration.chosen
attention.calibration.tried fixed_context.tokens placement.policy placement.preemptions placement.phases[].phase
placement.phases[].steps placement.phase_boundaries placement.plan seed shard requests tokens.prompt
tokens.shared_prompt tokens.generated tokens.recomputed steps max_batch moved_bytes.to_host
moved_bytes.to_device_by_kind.weights moved_bytes.to_device_by_kind.kv_reloads
moved_bytes.to_device_by_kind.kv_blocks moved_bytes.to_device_by_kind.cached_hidden_states
moved_bytes.to_device_by_kind.attention_results cached_hidden_states host_attention.rows host_attention.query_bytes
host_attention.result_bytes host_attention.kv_bytes token_cache.budget_bytes token_cache.chosen_bytes
prediction.steps prediction.seconds prediction.moved_bytes.to_device prediction.moved_bytes.to_host
""".split()
PLAN = """
format model.name model.fingerprint machine workload budget kv_dtype block_tokens recompute_source schedule phases
prefill_seconds decode_seconds tokens_per_second device_peak_bytes host_peak_bytes paper_objective_seconds
paper_schedule_seconds extrapolated neighbours
""".split()
SIMULATE = """
[].policy [].model [].profile [].batch_size [].input_len [].output_len [].kv_dtype [].tokens_per_second [].seconds
[].max_running [].suspensions [].repeated_tokens [].compute_seconds [].h2d_seconds [].d2h_seconds [].host_seconds
[].h2d_bytes [].d2h_bytes [].recomputed_tokens [].device_peak_bytes [].host_peak_bytes [].phase_1_steps
[].phase_2_steps [].phase_3_steps [].streamed_layers [].infeasible
""".split()
EVAL = """
[].task [].attention [].perplexity [].perplexity_stderr [].nats_per_token [].tokens [].windows [].window
[].prefill_len [].kv_bytes_per_token [].tokens_attended [].kv_sparsity [].compression [].kv_dtype [].repetition
[].repetition_stderr [].token_share [].samples [].coverage [].top_k_agreement [].attention_sparsity
""".split()
INSPECT = """
format model_type architecture layers hidden_size ffn_size heads kv_heads head_dim vocab_size max_positions
parameters weight_bytes weights_dtype kv_bytes_per_token weight_files file_bytes tokenizer_files tensors
""".split()
STDOUT = {"plan": PLAN, "simulate": SIMULATE, "eval": EVAL, "inspect": INSPECT}
BYTES = {".jsonl", ".safetensors"}


def pick(value, path):
    """What `path` leads to: names with dots between, [] for each item of a list."""
    for at, name in enumerate(path):
        if name == "[]":
            return [pick(item, path[at + 1:]) for item in value] if isinstance(value, list) else "absent"
        if not isinstance(value, dict) or name not in value:
            return "absent"
        value = value[name]
    return value


def fields_of(text, names):
    report = json.loads(text)
    return {name: pick(report, name.replace("[]", ".[]").strip(".").split(".")) for name in names}


def tokens_of(text):
    """Bytes of chosen tokens that were brought or found in the cache: how many of each, the clock decides."""
    summary = json.loads(text)
    brought = pick(summary, ["moved_bytes", "to_device_by_kind", "kv_tokens"])
    found = pick(summary, ["token_cache", "found_bytes"])
    return {"kv_tokens + found_bytes": "absent" if "absent" in (brought, found) else brought + found}


def spans_of(text):
    """Names of lanes and of the spans on each."""
    events = json.loads(text)["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return {
        "lanes": sorted(lanes.values()),
        "spans": sorted({f"{lanes[event['tid']]}: {event['name']}" for event in events if event["ph"] == "X"}),
    }


class Build:
    def __init__(self, program, folder, substitutes):
        self.program, self.folder, self.substitutes = program, folder, substitutes
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRIPHASE_", "SLURM_"))}
        self.environment = {**kept, "XDG_CACHE_HOME": str(folder / "cache")}

    def start(self, command, folder):
        words = shlex.split(string.Template(command).substitute(self.substitutes))
        with open(folder / "stdout", "w") as out, open(folder / "stderr", "a") as errors:
            return subprocess.Popen([self.program, *words], stdout=out, stderr=errors, cwd=folder, env=self.environment)

    def kill_one(self, command, folder):
        """Starts the job and kills it when records are there; False: it had ended before."""
        process = self.start(command, folder)
        part = folder / "out.jsonl.part"
        until = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < until:
            if part.exists() and part.stat().st_size > 0:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def run(self, row):
        """{what: value} of everything that is compared, and what is wrong with the row itself."""
        commands = row.commands
        folder = self.folder / re.sub(r"[^a-z0-9.]+", "-", row.name)
        folder.mkdir(parents=True)
        if row.kill and not self.kill_one(commands[-1], folder):
            return {}, ["the job ended before it could be killed"]
        found, problems = {}, []
        for number, command in enumerate(commands, 1):
            process = self.start(command, folder)
            try:
                code = process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return {}, [f"command {number} ran longer than {SECONDS} s"]
            found[f"exit code of command {number}"] = code
            expected = row.ends if number == len(commands) else 0
            if code != expected:
                last = ((folder / "stderr").read_text(errors="replace").splitlines() or [""])[-1]
                problems.append(f"command {number} ended with {code}, the table says {expected}: {last}")
        found.update(self.compared(folder, commands[-1].split()[0], row))
        return found, problems

    @staticmethod
    def compared(folder, command, row):
        found = {}

        def add(file, fields):
            found.update({f"{file}: {name}": value for name, value in fields.items()})

        for path in sorted(folder.rglob("*")):
            file = str(path.relative_to(folder))
            if path.suffix in BYTES:
                found[file] = OF_A_JOB.sub(rb"\1", path.read_bytes())
            elif row.kill:
                continue  # what a resumed job still had to do depends on when it was killed
            elif file.endswith(".summary.json"):
                add(file, fields_of(path.read_text(), SUMMARY))
                add(file, tokens_of(path.read_text()))
            elif file.endswith(".plan.json"):
                add(file, fields_of(path.read_text(), PLAN))
            elif file == "trace.json":
                add(file, spans_of(path.read_text()))
        text = (folder / "stdout").read_text()
        if command in STDOUT and text.lstrip().startswith(("{", "[")):
            add("stdout", fields_of(text, STDOUT[command]))
        return found


def lines_apart(old, new):
    """Where two files of lines differ, and whether the tokens do."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return f"{len(before)} lines, then {len(after)}"
    apart = [number for number, pair in enumerate(zip(before, after)) if pair[0] != pair[1]]
    if not apart:
        return "line ends differ"
    try:
        tokens = [json.loads(lines[apart[0]]).get("tokens") for lines in (before, after)]
        kind = "tokens" if tokens[0] != tokens[1] else "more than tokens"
    except (ValueError, AttributeError):
        kind = "bytes"
    return f"{len(apart)} of {len(before)} lines differ, first line {apart[0] + 1} in {kind}"


def difference(what, old, new):
    if isinstance(old, bytes) and isinstance(new, bytes):
        return f"{what}: {lines_apart(old, new)}"
    if isinstance(old, list) and isinstance(new, list):
        gone, come = ([item for item in one if item not in other] for one, other in ((old, new), (new, old)))
        return f"{what}: {len(old)} and {len(new)} items; only before {str(gone)[:160]}, only after {str(come)[:160]}"
    return f"{what}: {str(old)[:160]}, then {str(new)[:160]}"


def compare(row, old, new):
    before, wrong = old.run(row)
    after, also_wrong = new.run(row)
    apart = [what for what in sorted(before.keys() | after.keys())
             if before.get(what, "absent") != after.get(what, "absent")]  # fmt: skip
    # Where one build fails, what it did not write is no news.
    ends = [what for what in apart if what.startswith("exit code")]
    if ends:
        wrong = wrong or [f"new build: {problem}" for problem in also_wrong]
    wrong += [difference(what, before.get(what, "absent"), after.get(what, "absent")) for what in ends or apart]
    if not before or not after:
        wrong += [problem for problem in also_wrong if problem not in wrong]
    return wrong, sum(value != "absent" for value in before.values())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", metavar="OLD_TRIPHASE", help="the program before")
    parser.add_argument("new", nargs="?", metavar="NEW_TRIPHASE", help="the program after")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose names match")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at the same time (default 1)")
    parser.add_argument("--list", action="store_true", help="print the table and end")
    parser.add_argument("--keep", metavar="DIR", help="leave the rows' folders there")
    arguments = parser.parse_args()
    if not arguments.list and not (arguments.old and arguments.new):
        parser.error("two programs are needed")
    return arguments


def main():
    arguments = parse_arguments()
    rows = [row for row in ROWS if re.search(arguments.only, row.name)]
    if arguments.list:
        for row in rows:
            print(f"{row.name}  (exit {row.ends}{', killed once' if row.kill else ''})")
            for command in row.commands:
                print(f"  triphase {' '.join(command.split())}")
        return 0
    started = time.monotonic()
    failed = values = 0
    with tempfile.TemporaryDirectory(prefix="triphase-builds-") as scratch:
        top = pathlib.Path(arguments.keep or scratch).resolve()
        inputs = top / "inputs"
        inputs.mkdir(parents=True)
        texts = [json.loads(line)["prompt"] for line in (SHIPPED / "prompts.jsonl").read_text().splitlines()]
        write_inputs(inputs, texts)
        places = {"in": inputs, "mha": SHIPPED / "triphase-mha", "gqa": SHIPPED / "triphase-gqa"}
        old, new = (Build(str(pathlib.Path(program).resolve()), top / name, places)
                    for name, program in (("old", arguments.old), ("new", arguments.new)))  # fmt: skip
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            waiting = {pool.submit(compare, row, old, new): row for row in rows}
            for done in concurrent.futures.as_completed(waiting):
                wrong, compared = done.result()
                values += compared
                failed += bool(wrong)
                for line in wrong:
                    print(f"{waiting[done].name}: {line}", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(rows)} rows, {values} values compared, {failed} rows differ ({seconds:.0f} s)")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
