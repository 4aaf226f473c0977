#!/usr/bin/env python3
"""Predicted beside measured step times, on the CPU device with an emulated link.

    bench/predicted_vs_measured.py TRIPHASE             about 8 minutes on an idle machine
    bench/predicted_vs_measured.py TRIPHASE --quick     to try it; the numbers say little

`triphase profile` measures the machine once for each link and attention method; `triphase run --predict` then
simulates every configuration with the run's own placement policy and division of memory, before it runs it. A decode
step's predicted and measured seconds are compared, each the decode time over the decode steps. Rounds go through all
configurations in turn, so that a slow minute of the machine falls on all configurations alike; the median round counts.

What share of the chosen host tokens is found in the token cache depends on the text, not on the machine: of
sparse configurations the first round only measures it, and the prediction of the others gets it as --miss-rate.

On a virtual machine other tenants take processor time away ("steal"): a profile or a run that lost more than
MOST_STEAL of it is measured again, a few times at most, and the one that lost least counts. The page says how much
that was at worst.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from alisa_grid import write_prompts

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_MODEL = ROOT / "bench" / "shapes" / "llama-110m" / "config.json"
MOST_STEAL = 0.02  # of the processors' time
ATTEMPTS = 3


def processor_ticks():
    """All of the processors' time so far, and what of it other tenants took; zeros where nobody says."""
    try:
        fields = pathlib.Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    return sum(map(int, fields)), int(fields[7])


def least_disturbed(measure):
    """What measure() returned when other tenants took least of the processors' time, and what share they took."""
    best = None
    for _ in range(ATTEMPTS):
        all_before, stolen_before = processor_ticks()
        result = measure()
        all_after, stolen_after = processor_ticks()
        share = (stolen_after - stolen_before) / max(all_after - all_before, 1)
        if best is None or share < best[1]:
            best = result, share
        if share <= MOST_STEAL:
            break
    return best


class Configuration:
    """One row: a job, its policy and its link."""

    def __init__(self, policy, batch, prompt, output, link, memory, kv="fp16", attention="dense", options=(), note=""):
        self.policy, self.batch, self.prompt, self.output = policy, batch, prompt, output
        self.link, self.memory, self.kv, self.attention = link, memory, kv, attention
        self.options, self.note = options, note
        self.miss_rate = None

    def name(self):
        words = [self.policy, *self.options, self.attention, self.kv, f"b={self.batch}", f"{self.prompt}+{self.output}"]
        return " ".join(words + [self.link, self.memory or "no budget"])

    def sparse(self):
        return self.attention != "dense"

    def attention_options(self):
        return ["--attention", self.attention, "--kv-sparsity", "0.8"] if self.sparse() else []


# KV of llama-110m takes 36,864 bytes a token in FP16; weights and scratch take 219 MiB. Under these budgets the device
# holds a third to two thirds of the KV, or not all of the weights.
FULL = [
    Configuration("device-only", 8, 128, 48, "2GB/s,2us", None),
    Configuration("device-only", 16, 64, 48, "2GB/s,2us", None, kv="int8"),
    Configuration("zero", 8, 128, 48, "2GB/s,2us", "250MiB"),
    Configuration("zero", 8, 128, 32, "0.5GB/s,2us", "200MiB"),
    Configuration("vllm", 8, 96, 64, "2GB/s,2us", "246MiB"),
    Configuration("vllm", 8, 96, 64, "2GB/s,2us", "246MiB", options=("preemption=swap",)),
    Configuration("accelerate", 8, 192, 48, "2GB/s,2us", "250MiB"),
    Configuration("accelerate", 8, 192, 32, "0.5GB/s,2us", "250MiB"),
    Configuration("flexgen", 8, 192, 48, "2GB/s,2us", "250MiB", options=("kv-share=0.25",)),
    Configuration("flexgen", 8, 192, 32, "0.5GB/s,2us", "260MiB", kv="int8", options=("kv-share=0.25",)),
    Configuration("triphase", 8, 192, 48, "2GB/s,2us", "250MiB"),
    Configuration("triphase", 8, 192, 32, "0.5GB/s,2us", "250MiB"),
    Configuration("triphase", 8, 192, 48, "0.5GB/s,2us", "260MiB", kv="int8"),
    Configuration("triphase", 4, 448, 48, "2GB/s,2us", "250MiB", attention="swa"),
    Configuration("triphase", 8, 192, 48, "0.5GB/s,2us", "250MiB", attention="swa"),
    Configuration("triphase", 8, 192, 48, "0.5GB/s,2us", "260MiB", kv="int8", attention="swa"),
]


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.profiles = {}
        self.worst_steal = 0.0

    def call(self, *command):
        done = subprocess.run([self.arguments.triphase, *command], capture_output=True, text=True,
                              timeout=self.arguments.timeout)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return done

    def model(self):
        return ["--model", str(self.arguments.model), "--threads", str(self.arguments.threads)]

    def profile(self, configuration):
        key = (configuration.link, configuration.attention)
        if key not in self.profiles:
            profile, share = least_disturbed(lambda: self.measure_profile(configuration))
            self.worst_steal = max(self.worst_steal, share)
            self.profiles[key] = self.folder / f"profile-{len(self.profiles)}.json"
            self.profiles[key].write_text(profile, encoding="utf-8")
        return self.profiles[key]

    def measure_profile(self, configuration):
        path = self.folder / "profile.json"
        path.unlink(missing_ok=True)
        self.call("profile", *self.model(), "--emulate-link", configuration.link, "--output", str(path), "--time",
                  f"{self.arguments.profile_time}s", "--batch-size", "16", "--max-context", "512",
                  *configuration.attention_options())
        return path.read_text(encoding="utf-8")

    def run(self, configuration):
        """The summary of one round."""
        prompts = self.folder / f"prompts-{configuration.batch}-{configuration.prompt}.jsonl"
        if not prompts.exists():
            write_prompts(prompts, configuration.batch, configuration.prompt)
        output = self.folder / "out.jsonl"
        command = ["run", *self.model(), "--random-weights", "--prompts", str(prompts), "--output", str(output), "--overwrite",
                   "--progress", "off", "--quiet", "--ignore-eos", "--batch-size", str(configuration.batch), "--max-tokens",
                   str(configuration.output), "--max-context", str(configuration.prompt + configuration.output),
                   "--policy", configuration.policy, "--kv-dtype", configuration.kv, "--emulate-link",
                   configuration.link, "--predict", "--profile", str(self.profile(configuration)),
                   "--host-memory", "4GiB"]
        if configuration.memory:
            command += ["--device-memory", configuration.memory]
        command += configuration.attention_options()
        if configuration.miss_rate is not None:
            command += ["--miss-rate", f"{configuration.miss_rate:.4f}"]
        for option in configuration.options:
            command += ["--policy-option", option]
        self.call(*command)
        with open(f"{output}.summary.json", encoding="utf-8") as file:
            return json.load(file)

    def measure(self, configurations):
        for configuration in configurations:
            self.profile(configuration)
        rounds = {configuration.name(): [] for configuration in configurations}
        for configuration in configurations:
            if configuration.sparse():
                hit_rate = self.run(configuration)["token_cache"]["hit_rate"]
                configuration.miss_rate = 1.0 - (hit_rate or 0.0)
        for number in range(self.arguments.rounds):
            for configuration in configurations:
                print(f"round {number + 1}: {configuration.name()}", file=sys.stderr)
                summary, share = least_disturbed(lambda one=configuration: self.run(one))
                self.worst_steal = max(self.worst_steal, share)
                rounds[configuration.name()].append(summary)
        return rounds


def row_of(configuration, summaries):
    """Decode seconds of a step, predicted and measured, and what else was predicted."""
    first = summaries[0]
    prediction = first["prediction"]
    steps = configuration.output - 1
    measured = [summary["seconds"]["decode"] / steps for summary in summaries]
    median = statistics.median(measured)
    predicted = prediction["seconds"]["decode"] / steps
    prefill = statistics.median(summary["seconds"]["prefill"] for summary in summaries)
    return {
        "configuration": configuration.name(), "policy": configuration.policy, "attention": configuration.attention,
        "kv_dtype": configuration.kv, "batch_size": configuration.batch, "input_len": configuration.prompt,
        "output_len": configuration.output, "link": configuration.link, "device_memory": configuration.memory,
        "miss_rate": configuration.miss_rate,
        "predicted_step_seconds": predicted, "measured_step_seconds": median, "rounds": measured,
        "error": predicted / median - 1.0,
        "predicted_prefill_seconds": prediction["seconds"]["prefill"], "measured_prefill_seconds": prefill,
        "prefill_error": prediction["seconds"]["prefill"] / prefill - 1.0,
        "predicted_steps": prediction["steps"], "measured_steps": first["steps"],
        "predicted_bytes_to_device": prediction["moved_bytes"]["to_device"],
        "measured_bytes_to_device": first["moved_bytes"]["to_device"],
        "predicted_bytes_to_host": prediction["moved_bytes"]["to_host"],
        "measured_bytes_to_host": first["moved_bytes"]["to_host"],
        "extrapolated": prediction["extrapolated"],
    }


def table(rows):
    lines = ["| configuration | predicted ms | measured ms (rounds) | error | prefill error | bytes to device |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        rounds = sorted(row["rounds"])
        moved, predicted = row["measured_bytes_to_device"], row["predicted_bytes_to_device"]
        lines.append(
            f"| {row['configuration']} | {1e3 * row['predicted_step_seconds']:.2f} | "
            f"{1e3 * row['measured_step_seconds']:.2f} ({1e3 * rounds[0]:.2f} to {1e3 * rounds[-1]:.2f}) | "
            f"{row['error']:+.1%} | {row['prefill_error']:+.1%} | "
            f"{moved / 1e6:.1f} MB{'' if moved == predicted else f', predicted {predicted / 1e6:.1f}'} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triphase")
    parser.add_argument("--model", type=pathlib.Path, default=DEFAULT_MODEL, help="a config.json; weights are random")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile-time", type=float, default=80.0, help="seconds for each link")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--only", default="", help="configurations whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="one round, short profiles")
    parser.add_argument("--output", type=pathlib.Path, help="folder for predicted_vs_measured.json and .md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.profile_time = 1, 10.0
    configurations = [one for one in FULL if arguments.only in one.name()]
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: load average {load:.1f}; such numbers say little", file=sys.stderr)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        rounds = bench.measure(configurations)
    rows = [row_of(configuration, rounds[configuration.name()]) for configuration in configurations]
    errors = [abs(row["error"]) for row in rows]
    summary = rounds[configurations[0].name()][0]
    verdict = (f"Mean absolute error of a decode step over {len(rows)} configurations: {statistics.mean(errors):.1%} "
               f"(worst {max(errors):.1%}); of the prefill {statistics.mean(abs(row['prefill_error']) for row in rows):.1%}.")
    text = (f"# Predicted and measured step times\n\nWritten by `bench/predicted_vs_measured.py`. Emulated link; "
            f"{summary['hardware']['cpu']}, {arguments.threads} threads, {arguments.model.parent.name} with random "
            f"weights, calibrated on `triphase profile` of the same machine, model and links before the first round "
            f"and, for sparse attention, on the miss rate of a run before it; {arguments.rounds} rounds, load average {load:.2f} at the start, "
            f"other tenants took at most {bench.worst_steal:.1%} of a measurement's processor time, {time.monotonic() - start:.0f} s in all.\n\n{table(rows)}\n\n{verdict}\n")
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        result = {"emulated": True, "cpu": summary["hardware"]["cpu"], "threads": arguments.threads,
                  "commit": summary["program"]["commit"], "load_average": load,
                  "worst_steal": bench.worst_steal, "rounds": arguments.rounds,
                  "mean_absolute_error": statistics.mean(errors), "worst_error": max(errors), "rows": rows}
        (arguments.output / "predicted_vs_measured.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.output / "predicted_vs_measured.md").write_text(text)


if __name__ == "__main__":
    main()
