#!/usr/bin/env python3
"""Writes docs/alisa-figures.md: ALISA's evaluation grid under the simulator, beside its published ratios.

    tools/lab/alisa_figures.py TRIPHASE [--output docs/alisa-figures.md]

TRIPHASE is the program; everything comes from `triphase simulate` on profiles derived from data sheets.
"""

import argparse
import json
import subprocess

SPARSITY = "0.8"
# Shares of the attended host tokens that cross the link. 1 is the bound, MIDDLE the one that details are shown for.
MISS_RATES = ["0.03", "0.25", "1"]
MIDDLE = "0.25"
PUBLISHED_LEAST = 1.4  # the paper's lowest throughput over FlexGen
GRID = {  # machine -> models that ALISA ran on it
    "v100-16gb": ["opt-6.7b", "llama-7b"],
    "v100-32gb": ["opt-6.7b", "opt-13b", "llama-7b", "llama-13b"],
    "h100-80gb": ["opt-6.7b", "opt-13b", "opt-30b", "llama-7b", "llama-13b", "llama-33b"],
}
BATCHES = "4,8,16,32,64"
BASELINES = ["flexgen", "vllm", "accelerate", "zero", "device-only"]


def simulate(program, model, machine, batches, policies, *options):
    command = [program, "simulate", "--quiet", "--model", model, "--profile", machine, "--batch-size", str(batches),
               "--policies", ",".join(policies), "--format", "json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 5):  # 5: no policy can run
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def speed(row):
    return row["tokens_per_second"]


def cell(row):
    return "OOM" if speed(row) is None else f"{speed(row):.0f}"


def quotient(ours, theirs):
    return speed(ours) / speed(theirs) if speed(ours) and speed(theirs) else None


def ratio(ours, theirs):
    value = quotient(ours, theirs)
    return "-" if value is None else f"{value:.2f}"


def percent(miss):
    return f"{float(miss):.0%}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row) + " |" for row in rows]) + "\n"


class Cell:
    """One machine, model and batch size of Fig. 9: `ours` by miss rate, `base` by policy, vLLM with INT8 KV."""

    def __init__(self, place, ours, base, int8):
        self.place, self.ours, self.base, self.int8 = place, ours, base, int8

    def fits(self):
        """Dense attention has all sequences and their KV on the device, so that nothing is offloaded."""
        return self.base["device-only"]["max_running"] == self.place[2]

    def below(self, miss):
        value = quotient(self.ours[miss], self.base["flexgen"])
        return value is not None and value < PUBLISHED_LEAST

    def why(self):
        rates = [percent(miss) for miss in MISS_RATES if self.below(miss)]
        if not rates:
            return ""
        return "everything fits" if self.fits() else f"misses (at {', '.join(rates)})"


def simulate_cells(program):
    cells = []
    for machine, models in GRID.items():
        for model in models:
            def rows(policies, *options, where=(model, machine)):
                return simulate(program, *where, BATCHES, policies, *options)

            ours = {miss: rows(["triphase"], "--kv-sparsity", SPARSITY, "--miss-rate", miss) for miss in MISS_RATES}
            base = rows(BASELINES, "--kv-dtype", "fp16")
            int8 = rows(["vllm"], "--kv-dtype", "int8")
            for index, last in enumerate(int8):
                batch = last["batch_size"]
                cells.append(Cell((machine, model, batch), {miss: ours[miss][index] for miss in MISS_RATES},
                                  {row["policy"]: row for row in base if row["batch_size"] == batch}, last))
    return cells


PLACE = ["machine", "model", "batch"]
OURS = [f"triphase, {percent(miss)}" for miss in MISS_RATES]


def throughput_table(cells):
    rows = [[*one.place, *(cell(one.ours[miss]) for miss in MISS_RATES), cell(one.base["flexgen"]),
             cell(one.base["vllm"]), cell(one.int8)] for one in cells]
    return table([*PLACE, *OURS, "flexgen", "vllm", "vllm INT8"], rows)


def other_table(cells):
    others = ["accelerate", "zero", "device-only"]
    return table([*PLACE, *others], [[*one.place, *(cell(one.base[name]) for name in others)] for one in cells])


def flexgen_table(cells):
    rows = [[*one.place, *(ratio(one.ours[miss], one.base["flexgen"]) for miss in MISS_RATES), one.why()]
            for one in cells]
    return table([*PLACE, *(percent(miss) for miss in MISS_RATES), "below 1.4 because"], rows)


def vllm_table(cells):
    rows = [[*one.place, *(ratio(one.ours[miss], one.base["vllm"]) for miss in MISS_RATES),
             *(ratio(one.ours[miss], one.int8) for miss in MISS_RATES)] for one in cells]
    head = [f"vs {other}, {percent(miss)}" for other in ("vllm", "vllm INT8") for miss in MISS_RATES]
    return table([*PLACE, *head], rows)


def bounds(pairs):
    ratios = [value for value in (quotient(a, b) for a, b in pairs) if value is not None]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def summary_table(cells):
    others = [("flexgen", "1.4 to 3.0", lambda one: one.base["flexgen"]),
              ("vllm, FP16 KV", "up to 1.9", lambda one: one.base["vllm"]),
              ("vllm, INT8 KV", "not shown", lambda one: one.int8)]
    rows = [[f"triphase : {name}", published,
             *(bounds([(one.ours[miss], other(one)) for one in cells]) for miss in MISS_RATES)]
            for name, published, other in others]
    return table(["ratio", "published", *(f"here, {percent(miss)}" for miss in MISS_RATES)], rows)


def unreached_table(cells):
    rows = []
    for miss in MISS_RATES:
        below = [one for one in cells if one.below(miss)]
        fitting = sum(one.fits() for one in below)
        rows.append([percent(miss), len(cells), len(below), fitting, len(below) - fitting])
    return table(["miss rate", "cells", "below 1.4x over flexgen", "of these everything fits", "of these it does not"],
                 rows)


OPT30 = ("opt-30b", "h100-80gb", 64)


def miss_options(sparsity, miss):
    return ["--kv-sparsity", sparsity, "--miss-rate", "1" if sparsity == "0" else miss]


def phases(program):
    """Fig. 12a: phases, memory and time of OPT-30B, batch 64, on one H100."""
    rows = []
    for sparsity in ("0", "0.4", "0.6", "0.8"):
        by_miss = {miss: simulate(program, *OPT30, ["triphase", "flexgen"], *miss_options(sparsity, miss),
                                  "--kv-dtype", "fp16", "--recompute", "on") for miss in MISS_RATES}
        for index, row in enumerate(by_miss[MIDDLE]):
            rows.append([row["policy"], f"{float(sparsity):.0%}",
                         *(f"{by_miss[miss][index]['seconds']:.1f}" for miss in MISS_RATES), row["phase_1_steps"],
                         row["phase_2_steps"], row["phase_3_steps"], f"{row['device_peak_bytes'] / 2**30:.1f}",
                         f"{row['host_peak_bytes'] / 2**30:.1f}"])
    return table(["policy", "KV sparsity", *(f"seconds, {percent(miss)}" for miss in MISS_RATES), "steps in I", "in II",
                  "in III", "device GiB", "host GiB"], rows)


def recomputation(program):
    """Fig. 12b: the same with and without Phase III, FP16 KV as in the paper's eq. 3."""
    rows = []
    for sparsity in ("0", "0.4", "0.6", "0.8"):
        row = [f"{float(sparsity):.0%}"]
        for miss in MISS_RATES:
            options = [*miss_options(sparsity, miss), "--kv-dtype", "fp16"]
            with_it = simulate(program, *OPT30, ["triphase"], *options, "--recompute", "on")[0]
            without = simulate(program, *OPT30, ["triphase"], *options, "--recompute", "off")[0]
            row += [f"{without['seconds']:.1f} / {with_it['seconds']:.1f}", ratio(with_it, without)]
        rows.append(row)
    head = [name for miss in MISS_RATES for name in (f"seconds, {percent(miss)}", "speed-up")]
    return table(["KV sparsity", *head], rows)


def ablation(program):
    """Fig. 12c: one technique after the other."""
    flexgen = simulate(program, *OPT30, ["flexgen"], "--kv-dtype", "fp16")[0]
    handicapped = simulate(program, *OPT30, ["flexgen"], "--kv-dtype", "fp16", "--handicaps")[0]
    dynamic = simulate(program, *OPT30, ["triphase"], "--kv-dtype", "fp16", "--recompute", "off")[0]

    def sparse(*options):
        return [simulate(program, *OPT30, ["triphase"], *miss_options(SPARSITY, miss), *options)[0]
                for miss in MISS_RATES]

    many = len(MISS_RATES)
    steps = [("flexgen with its original's handicaps", [handicapped] * many),
             ("flexgen, pinned and overlapped", [flexgen] * many),
             ("dense, dynamic scheduling (phases I and II)", [dynamic] * many),
             ("+ sparse window attention, 80 %", sparse("--kv-dtype", "fp16", "--recompute", "off")),
             ("+ recomputation (phase III)", sparse("--kv-dtype", "fp16", "--recompute", "on")),
             ("+ INT8 KV", sparse("--kv-dtype", "int8"))]
    head = [f"{name}, {percent(miss)}" for name in ("tokens/s", "vs flexgen") for miss in MISS_RATES]
    return table(["configuration", *head],
                 [[name, *map(cell, rows), *(ratio(row, flexgen) for row in rows)] for name, rows in steps])


TEXT = """# ALISA's figures under the simulator

Written by `tools/lab/alisa_figures.py`; do not edit by hand. **Every number here is simulated**: the engine's own
placement policies under the cost model. Nothing was measured on a V100 or H100. **Calibrated on**: nothing measured.
The profiles come from the machines' data sheets, and from the paper's 20 GB/s link and 128 GB host. Shares of the peaks
and costs of a launch and a copy are the same for every model (`scheduler/cost/hardware_spec.cpp` and `.h`). No
measurement of the paper went into them. Input 128, output 512, KV sparsity {sparsity}; throughput is generated
tokens per second of prefill and decode. `triphase` chooses its KV type; the baselines attend densely, as their
originals do, with FP16 KV unless the column says INT8. OOM: the policy refuses the job. **`flexgen`,
`vllm`, `accelerate` and `zero` are our versions** of those systems' policies; the systems did not run. `flexgen` is the
best of its own policy search and of percentages set by hand, KV moved or attended on the host.

**Where measurement disagrees.** The cost model does not charge finding chosen tokens on the host. One job of this kind
ran on an H200 (`docs/gpu-performance.md`, OPT-30B's shape). Under sparse window attention with offloaded KV it reached 0.56
of what was then predicted, under our version of vLLM's policy 0.89. Take `triphase` as an upper bound where
"everything fits" does not stand beside it.

Of the host tokens that sparse window attention selects, some are found on the device again. What share has to cross the
link decides whether offloading them pays, and it depends on the text: it is an assumption here, not a measurement.
Columns of `triphase` are for shares of {rates}. 100% is the bound. `bench/results/*/predicted_vs_measured.json` has
shares near 3%, of random weights on random tokens; `triphase profile --prompts` measures the share on a user's prompts.

## Figure 9: throughput, tokens/s

{grid}
The other baselines:

{others}
### Against the paper

{summary}
The paper's least, 1.4 times FlexGen, is not reached everywhere:

{unreached}
Everything fits where `device-only` runs the whole batch: no policy moves KV, and no miss rate matters. There `triphase`
is ahead only by KV that it does not read and by INT8. A step reads all weights beside that KV, so the ratio grows with
the batch. The paper gives its range for all cells. Its FlexGen copies KV that is on the device in every step; `flexgen`
here does not (Figure 12c has what that costs). The last column below says why a cell is not reached; with misses, at
which miss rates.

Ratios of `triphase` to `flexgen` by miss rate:

{versus_flexgen}
Ratios of `triphase` to `vllm` by miss rate:

{versus_vllm}
Where ours differ, and why:

- The paper's figure has OOM for DeepSpeed at large batches; so has `zero` where the KV of the batch does not fit
  beside two streamed layers. It does not stream weights that need not leave, hence its high numbers at small batches.
- The paper finds vLLM ahead of ALISA where everything fits and credits its memory management. Our cost model charges
  choosing tokens by the bytes that it reads and writes, which is little.
- `accelerate` is very slow where the batch does not fit. Its whole dense KV crosses a 20 GB/s link in every step:
  {accelerate}.
- `flexgen` may attend on the host at half of a stated 100 GB/s of memory bandwidth; whether the paper's FlexGen ran
  with CPU attention is not said.
- `flexgen` often does best with fewer sequences at a time and all their KV on the device. The simulated link is slow
  beside the device's memory. Then its ratio to `triphase` is much that of the batch sizes.
- Ratios above the published ones have two causes. INT8 KV lies on the device too, which the paper does not count on.
  And our scheduling moves nothing before it must.

## Figure 12a: phases, time and memory (OPT-30B, batch 64, H100 80 GB, FP16 KV)

Seconds by miss rate; steps and memory at {middle}.

{phases}
Steps are engine steps in which any sequence is in that phase; a job that runs fewer sequences at a time takes more of
them. Without sparsity it is faster to run about as many as the device holds, for `triphase` as for `flexgen`: offloaded
dense KV would cross the link in every step. The paper shows FlexGen and ALISA offloading there. Prefill steps count as
Phase I.

## Figure 12b: recomputation (same setting)

Seconds without / with Phase III, by miss rate.

{recompute}
Published: 1.2 to 1.3. Recomputation starts from INT8 hidden states, a quarter of the bytes of FP16 KV. It helps where a
step waits for the link. Cached hidden states are charged with their host memory and their trip there.

## Figure 12c: one technique after the other (same setting)

{ablation}
The paper's techniques contribute about equally. Here pinned, overlapped copies already belong to the baseline. Its best
percentages keep all KV of fewer sequences on the device. So of its original's handicaps it pays only for the copy of
that KV in every step, and dense dynamic scheduling does the same. What sparsity, recomputation and INT8 add depends on
the miss rate.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--output", default="docs/alisa-figures.md")
    options = parser.parse_args()
    program = options.program
    cells = simulate_cells(program)
    dense = simulate(program, *OPT30, ["accelerate"], "--kv-dtype", "fp16")[0]
    text = TEXT.format(
        sparsity=percent(SPARSITY), rates=", ".join(map(percent, MISS_RATES)), middle=percent(MIDDLE),
        grid=throughput_table(cells), others=other_table(cells), summary=summary_table(cells),
        unreached=unreached_table(cells), versus_flexgen=flexgen_table(cells), versus_vllm=vllm_table(cells),
        accelerate=f"{dense['h2d_bytes'] / 1e12:.1f} TB in all for OPT-30B at batch 64",
        phases=phases(program), recompute=recomputation(program), ablation=ablation(program))
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
