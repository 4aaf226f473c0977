#!/usr/bin/env python3
"""Cells of ALISA's grid on a real engine, by sampled steps.

    bench/alisa_grid.py TRIPHASE --device cuda:0 --model opt-30b --batch-size 64 --device-memory 80GiB
    bench/alisa_grid.py TRIPHASE --device cuda:0 --model opt-30b --device-memory 80GiB --ablation     as in Figure 12c
    bench/alisa_grid.py TRIPHASE --device cuda:0 --model llama-7b --batch-size 8 --only flexgen --full
    bench/alisa_grid.py TRIPHASE --model bench/shapes/tiny-test/config.json --batch-size 4 --input-len 32 \\
        --output-len 48 --full                                                                        to try it

A cell of 128 + 512 tokens is not generated whole. Short jobs of random prompts, as long as the context is at --samples
points of the generation, have at least --steps decode steps each with all rows that the policy runs at once. A row's
seconds in such a step, between the points as on a line, are added up over the generation. The shortest job's prefill is
the cell's. Where the policy triphase plans for the cell, the cell's job begins until its plan is there, and the samples
follow that plan from where they are in the generation. A last wave of fewer rows counts as a whole one. No sample sees
what happens once: KV computed again after a preemption, blocks that leave at the begin of a phase. A GPU's samples are
slower than its jobs: under a trace a step is queued after the one before it. --full also runs the cell whole and gives
estimate / full, which holds all of that.

Each configuration is a JSON line on stdout. What comes from the cost model is called predicted, and says from which
profile.
"""

import argparse
import bisect
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

VOCABULARY = 500  # token ids of the prompts; every shape has more
REFUSED = (1, 5)  # exit status: the policy cannot run some lines, or any, in this memory
CHUNK = 256  # prompt tokens of a step, until a sample has shown how many they are
PREDICTION = r"predicted with profile (.*): \d+ requests in (\d+) steps, (\S+) s of prefill and (\S+) s of decode"
WARM_UP = 3  # decode steps after a prefill that do not count: caches fill, a GPU records its graphs
SPARSE = ["--attention", "swa", "--kv-sparsity", "0.8"]
DYNAMIC = ["--policy", "triphase", "--kv-dtype", "fp16", "--recompute"]
CONFIGURATIONS = {
    "triphase": ["--policy", "triphase", *SPARSE],
    "triphase-dense": ["--policy", "triphase", "--kv-dtype", "fp16"],
    "flexgen": ["--policy", "flexgen", "--kv-dtype", "fp16"],
    "vllm": ["--policy", "vllm", "--kv-dtype", "fp16"],
    "vllm-int8": ["--policy", "vllm", "--kv-dtype", "int8"],
    "accelerate": ["--policy", "accelerate", "--kv-dtype", "fp16"],
    "zero": ["--policy", "zero", "--kv-dtype", "fp16"],
    "device-only": ["--policy", "device-only", "--kv-dtype", "fp16"],
    # Figure 12c, one technique after the other, beginning with flexgen
    "dynamic": [*DYNAMIC, "off"],
    "dynamic+sparse": [*DYNAMIC, "off", *SPARSE],
    "dynamic+sparse+recompute": [*DYNAMIC, "on", *SPARSE],
    "dynamic+sparse+recompute+int8": ["--policy", "triphase", "--kv-dtype", "int8", "--recompute", "on", *SPARSE],
}
FIGURE_9 = ["triphase", "flexgen", "vllm", "vllm-int8"]
FIGURE_12C = ["flexgen", *(name for name in CONFIGURATIONS if name.startswith("dynamic"))]


class Refused(Exception):
    pass


def write_prompts(path, lines, length):
    """Token ids that share no prefix, so that every prompt is computed."""
    dice = random.Random(f"{lines}-{length}")
    with open(path, "w", encoding="utf-8") as file:
        for line in range(lines):
            tokens = [10 + line, *(dice.randrange(10, VOCABULARY) for _ in range(length - 1))]
            file.write(json.dumps({"id": str(line), "prompt_tokens": tokens}) + "\n")


def given(arguments, *names):
    """These of this script's options as options of the program."""
    values = {name: getattr(arguments, name) for name in names}
    return [part for name, value in values.items() if value is not None for part in ("--" + name.replace("_", "-"), value)]


def call(command, refused=()):
    """Runs it; ends this script where it fails in another way than with the exit codes `refused`."""
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, *refused):
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done


class Cell:
    """One model, batch and memory; runs jobs of any length as parts of its generation."""

    def __init__(self, arguments, batch, folder):
        self.arguments, self.batch, self.folder = arguments, batch, folder
        self.chunk, self.at_once, self.plan = CHUNK, batch, None

    def command(self, options, prompt, output, more=()):
        """A job of one line for each sequence of the batch."""
        arguments, prompts = self.arguments, self.folder / "prompts.jsonl"
        write_prompts(prompts, self.batch, prompt)
        command = [arguments.triphase, "run", "--model", arguments.model, "--random-weights", "--prompts", prompts,
                   "--output", self.folder / "out.jsonl", "--overwrite", "--progress", "off", "--ignore-eos",
                   "--batch-size", self.at_once, "--max-tokens", output, "--max-context", self.total(), "--device",
                   arguments.device, *options, *more]  # fmt: skip
        names = ["device_memory", "host_memory", "threads"]
        if "--predict" in more or ("triphase" in options and "--plan" not in more):
            names += ["profile", "miss_rate"] if "--kv-sparsity" in options else ["profile"]
        return [*command, *given(arguments, *names)]

    def total(self):
        return self.arguments.input_len + self.arguments.output_len

    def start(self, *job):
        """Runs it; what it wrote to stderr."""
        done = call(self.command(*job), REFUSED)
        if done.returncode != 0:
            raise Refused("; ".join(re.findall(r"(?:error|warning): .*", done.stderr)))
        return done.stderr

    def run(self, options, prompt, output, more=()):
        """The job's summary."""
        self.start(options, prompt, output, ["--quiet", *more])
        return json.loads((self.folder / "out.jsonl.summary.json").read_text(encoding="utf-8"))

    def flexgen_options(self, options):
        """FlexGen's shares are set by a search or by hand: the ones that the simulator finds best."""
        arguments = self.arguments
        simulated = call([arguments.triphase, "simulate", "--quiet", "--model", arguments.model, "--profile", arguments.profile,
                          "--policies", "flexgen", "--batch-size", self.batch, "--input-len", arguments.input_len,
                          "--output-len", arguments.output_len, "--kv-dtype", "fp16", "--format", "json",
                          *given(arguments, "device_memory", "host_memory")], REFUSED)  # fmt: skip
        found = re.match(r"(?:searched|by hand): wg ([\d.]+), cg ([\d.]+), (?:(\d+) x (\d+), )?(.*)",
                         json.loads(simulated.stdout)[0]["detail"])
        if not found:
            raise Refused("no percentages fit")
        weights, kv, batch, batches, use = found.groups()
        chosen = [f"weight-share={weights}", f"kv-share={kv}", *([f"gpu-batch={batch}", f"num-batches={batches}"] if batch else []),
                  *(["host-kv=cpu-attention"] if use == "CPU attention" else [])]  # fmt: skip
        return [*options, *(part for pair in chosen for part in ("--policy-option", pair))]

    def prepare(self, options):
        """What the cost model predicts for the whole cell, and the cell's plan, where it needs one."""
        job = (options, self.arguments.input_len, self.arguments.output_len)
        said = self.start(*job, ["--dry-run", "--predict"])
        found = re.search(PREDICTION, said)
        predicted = {"profile": found[1], "steps": int(found[2]), "prefill_seconds": float(found[3]),
                     "decode_seconds": float(found[4])} if found else None
        if "plan (made for this job" not in said:
            return predicted
        written = self.folder / "out.jsonl.plan.json"
        written.unlink(missing_ok=True)
        begun = subprocess.Popen([str(part) for part in self.command(*job, ["--quiet"])])
        try:
            while begun.poll() is None and not written.exists():
                time.sleep(0.02)
        finally:
            begun.terminate()
            begun.wait()
        if not written.exists():
            sys.exit("alisa_grid: error: the cell's job ended before it had a plan")
        self.plan = json.loads(written.read_text(encoding="utf-8"))
        return predicted

    def plan_from(self, prompt):
        """Options for the rest of the cell's plan behind a context of this length."""
        if self.plan is None:
            return []
        past, file = prompt - self.arguments.input_len, self.folder / "plan.json"
        schedule = {**self.plan["schedule"]}
        for phase in ("p1", "p2"):
            schedule[phase] = max(0, schedule[phase] - past)
        workload = {**self.plan["workload"], "input_len": prompt, "output_len": self.total() - prompt}
        file.write_text(json.dumps({**self.plan, "schedule": schedule, "workload": workload}), encoding="utf-8")
        return ["--plan", file, "--plan-force", "--plan-strict"]

    def on_demand(self, options):
        """Whether as many requests run as have room just now, not as many as have room at their longest."""
        return "vllm" in options or bool(self.plan and self.plan["schedule"]["on_demand"])

    def sample(self, options, share):
        """What decode steps cost where this share of the generation is done."""
        arguments, trace = self.arguments, self.folder / "trace.json"
        longest = arguments.input_len + int(arguments.output_len * share)
        # The first of the batch is prefilled so many steps before the last, and has to run until then.
        stagger = -(-self.batch * longest // self.chunk)
        tokens = min(stagger + WARM_UP + arguments.steps + 2, arguments.output_len)
        prompt = arguments.input_len + round((arguments.output_len - tokens) * share)
        summary = self.run(options, prompt, tokens, ["--trace", trace, *self.plan_from(prompt)])
        found = read_steps(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"], prompt,
                           None if self.on_demand(options) else summary["max_batch"])
        self.chunk = found.pop("chunk")
        return {**found, "phase_steps": [phase["steps"] for phase in summary["placement"]["phases"]],
                "max_batch": summary["max_batch"], "preemptions": summary["placement"]["preemptions"],
                "hit_rate": summary["token_cache"]["hit_rate"], "kv_dtype": summary["model"]["kv_dtype"],
                "prefill_seconds": summary["seconds"]["prefill"]}

    def sample_all(self, options):
        """By context. The longest comes first: what runs at once there does so from the first step on, where a policy
        keeps room for whole requests; on demand none is kept."""
        shares = [number / (self.arguments.samples - 1) for number in range(self.arguments.samples)]
        last = self.sample(options, shares.pop())
        if not self.on_demand(options):
            self.at_once = last["max_batch"]
        return [*(self.sample(options, share) for share in shares), last]


def parts(spans, steps):
    """What lies of each span in each of the steps, which are in order."""
    begins = [begin for begin, _ in steps]
    for begin, end in spans:
        for step in range(max(bisect.bisect_right(begins, begin) - 1, 0), len(steps)):
            if steps[step][0] >= end:
                break
            if steps[step][1] > begin:
                yield max(begin, steps[step][0]), min(end, steps[step][1])


def covered(spans, steps):
    """Microseconds of the steps that any of the spans (begin, end) covers."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(parts(spans, steps)):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def counted_steps(steps, prompt, at_once):
    """Decode steps with all rows that run at once, and their mean context: no warm-up, and none in which or after which
    some end. Without at_once, all that run after a prefill, as many as they are."""
    counted, contexts, since, rows, made = [], [], 0, 0, 0
    for step, following in zip(steps, steps[1:], strict=False):
        now, then = step["args"]["decode_rows"], following["args"]
        if step["args"]["prefill_rows"] > 0:
            since, made = 0, made + now if now > 0 else 0
            continue
        since, made = since + 1, made + now
        rows = at_once or (now if since == 1 else rows)
        if since > WARM_UP and now == rows == then["decode_rows"] and then["prefill_rows"] == 0:
            counted.append(step)
            contexts.append(prompt + made / now)
    return counted, sum(contexts) / max(len(contexts), 1)


def queued(transfer):
    """When, in microseconds: on a busy machine a transfer may begin in the step after."""
    return transfer["ts"] - transfer.get("args", {}).get("queued_us", 0)


def read_steps(events, prompt, at_once):
    """Of a trace: what a row of a decode step costs, the prefill's steps and bytes, and how long lanes are idle."""
    lanes = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    spans = [{**event, "lane": lanes.get(event.get("tid")), "span": (event["ts"], event["ts"] + event["dur"])}
             for event in events if event["ph"] == "X"]
    steps = sorted((event for event in spans if event["name"] == "step"), key=lambda event: event["ts"])
    for step, following in zip(steps, steps[1:], strict=False):
        step["until"] = (step["ts"], following["ts"])  # copies go on between two steps
    prefill = [step["until"] for step in steps[:-1] if step["args"]["prefill_rows"] > 0]
    counted, context = counted_steps(steps, prompt, at_once)
    if not counted:
        sys.exit("alisa_grid: error: no decode step with all rows; hint: more --steps")
    within = [step["span"] for step in counted]
    rows = sum(step["args"]["decode_rows"] for step in counted)
    seconds = sum(step["dur"] for step in counted)

    def moved(during):
        """Bytes to the device that were queued in these steps; None where the device alone knows them."""
        begins = [begin for begin, _ in during]
        links = [event for event in spans if event["lane"] == "link to device"
                 and (step := bisect.bisect_right(begins, queued(event)) - 1) >= 0 and queued(event) < during[step][1]]
        sizes = [event.get("args", {}).get("bytes") for event in links]
        return None if None in sizes else sum(sizes)

    busy = {"compute": [event["span"] for event in spans if event["lane"] == "compute"
                        and (event["name"] in ("forward", "sample"))]}
    waits = [event["span"] for event in spans if event["lane"] == "compute" and event["name"].startswith("wait for")]
    for lane in ("link to device", "link to host"):
        busy[lane] = [event["span"] for event in spans if event["lane"] == lane]
    idle = {lane: 1 - covered(which, within) / seconds for lane, which in busy.items()}
    idle["compute"] += covered(waits, within) / seconds
    decode_bytes = moved([step["until"] for step in counted])
    return {"context": context, "chunk": max(step["args"]["prefill_rows"] for step in steps),
            "steps": len(counted), "rows": rows, "seconds_of_row": seconds / 1e6 / rows, "steps_of_row": len(counted) / rows,
            "bytes_of_row": None if decode_bytes is None else decode_bytes / rows,
            "prefill_steps": len(prefill), "prefill_bytes": moved(prefill), "idle_share": idle}


def integrate(points, first, last):
    """The sum over the contexts first..last of what is a line between the points (context, value), and beyond them."""
    total = 0.0
    for context in range(first, last + 1):
        at = next((i for i in range(1, len(points) - 1) if context <= points[i][0]), len(points) - 1)
        (x0, y0), (x1, y1) = points[at - 1], points[at]
        total += y0 + (y1 - y0) * (context - x0) / (x1 - x0)
    return total


def estimate(cell, samples):
    """The whole cell: each request makes a first token in the prefill, the others in decode steps."""
    arguments = cell.arguments
    # All of a batch run at once, or waves of them one after the other; on demand as many as fit just now.
    rows = -(-cell.batch // cell.at_once) * cell.at_once
    first, last = arguments.input_len + 1, arguments.input_len + arguments.output_len - 1

    def whole(value):
        values = [value(one) for one in samples]
        if any(one is None for one in values):
            return None
        return rows * integrate([(one["context"], y) for one, y in zip(samples, values, strict=True)], first, last)

    moved = whole(lambda one: one["bytes_of_row"])
    result = {"prefill_seconds": samples[0]["prefill_seconds"], "decode_seconds": whole(lambda one: one["seconds_of_row"]),
              "steps": samples[0]["prefill_steps"] + whole(lambda one: one["steps_of_row"]),
              "bytes_to_device": None if moved is None or samples[0]["prefill_bytes"] is None
              else samples[0]["prefill_bytes"] + moved}
    return with_speed(cell, result)


def with_speed(cell, result):
    tokens = cell.batch * cell.arguments.output_len
    return result and {**result, "tokens_per_second": tokens / (result["prefill_seconds"] + result["decode_seconds"])}


def full_run(cell, options):
    cell.at_once = cell.batch
    summary = cell.run(options, cell.arguments.input_len, cell.arguments.output_len)
    seconds = summary["seconds"]
    return {"prefill_seconds": seconds["prefill"], "decode_seconds": seconds["decode"], "steps": summary["steps"],
            "bytes_to_device": summary["moved_bytes"]["to_device"], "generated": summary["tokens"]["generated"],
            "max_batch": summary["max_batch"], "preemptions": summary["placement"]["preemptions"],
            "phase_steps": [phase["steps"] for phase in summary["placement"]["phases"]]}


def measure_profile(arguments, batch, folder):
    """Without a profile a dry run has no plan, and samples would be planned one by one, as if they were the cell."""
    file = folder / "profile.json"
    call([arguments.triphase, "profile", "--quiet", "--progress", "off", "--model", arguments.model, "--device",
          arguments.device, "--time", "20s", "--batch-size", batch, "--max-context",
          arguments.input_len + arguments.output_len, "--output", file,
          *given(arguments, "threads", "device_memory", "host_memory")])  # fmt: skip
    return str(file)


def measure(cell, name):
    arguments, options = cell.arguments, CONFIGURATIONS[name]
    row = {"configuration": name, "model": arguments.model, "batch_size": cell.batch, "input_len": arguments.input_len,
           "output_len": arguments.output_len, "device": arguments.device, "device_memory": arguments.device_memory}
    try:
        if "flexgen" in options:
            options = cell.flexgen_options(options)
            row["options"] = options
        row["predicted"] = with_speed(cell, cell.prepare(options))
        row["planned"] = cell.plan is not None
        row["samples"] = cell.sample_all(options)
        row["estimated"] = estimate(cell, row["samples"])
        if arguments.full:
            row["full"] = with_speed(cell, full_run(cell, options))
            row["estimated_over_full"] = {key: row["estimated"][key] / value for key, value in row["full"].items()
                                          if row["estimated"].get(key) is not None and value}
    except Refused as refused:
        row["refused"] = str(refused)
    return row


def line_of(row):
    what = f"{row['configuration']}, {row['model']}, batch {row['batch_size']}"
    if "refused" in row:
        return f"cell: {what}: refused"
    idle = max(one["idle_share"]["compute"] for one in row["samples"])
    text = (f"cell: {what}: {row['estimated']['tokens_per_second']:.1f} tokens/s by sampled steps, "
            f"compute idle at most {idle:.1%} under the trace")
    if row["predicted"]:
        text += f"; {row['predicted']['tokens_per_second']:.1f} predicted with profile {row['predicted']['profile']}"
    if "full" in row:
        ratios = ", ".join(f"{key} {value:.3f}" for key, value in row["estimated_over_full"].items())
        text += f"; estimate / full run: {ratios}"
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triphase")
    parser.add_argument("--model", required=True, help="a built-in shape or a config.json; weights are random")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", default="64", help="one or more, separated by commas")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=512)
    parser.add_argument("--device-memory", help="the budget, such as 80GiB")
    parser.add_argument("--host-memory")
    parser.add_argument("--profile", help="of triphase profile, or a built-in machine; default: this machine's, measured first")
    parser.add_argument("--miss-rate", help="what plans and predictions take it to be under sparse attention")
    parser.add_argument("--threads")
    parser.add_argument("--only", help=f"of {', '.join(CONFIGURATIONS)}; default {','.join(FIGURE_9)}")
    parser.add_argument("--ablation", action="store_true", help=f"{', '.join(FIGURE_12C)}")
    parser.add_argument("--samples", type=int, default=4, help="contexts to measure at")
    parser.add_argument("--steps", type=int, default=8, help="decode steps that count at each")
    parser.add_argument("--full", action="store_true", help="run the cell whole too")
    arguments = parser.parse_args()
    names = (arguments.only or ",".join(FIGURE_12C if arguments.ablation else FIGURE_9)).split(",")
    unknown = [name for name in names if name not in CONFIGURATIONS]
    if unknown:
        parser.error(f"--only {unknown[0]}: expected of {', '.join(CONFIGURATIONS)}")
    if arguments.samples < 2 or arguments.output_len < arguments.steps + WARM_UP + arguments.samples + 2:
        parser.error(f"--output-len has no room for {arguments.samples} samples of {arguments.steps + WARM_UP + 2} tokens")
    return arguments, names


def main():
    arguments, names = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        batches = [int(part) for part in arguments.batch_size.split(",")]
        if not arguments.profile:
            arguments.profile = measure_profile(arguments, max(batches), pathlib.Path(folder))
        for batch in batches:
            for name in names:
                row = measure(Cell(arguments, batch, pathlib.Path(folder)), name)
                print(json.dumps(row), flush=True)
                print(line_of(row), file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
