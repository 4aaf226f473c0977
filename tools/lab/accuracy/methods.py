"""Every method on every task, by bytes and by KV sparsity: SparQ's Tables 2 and 3, ALISA's Fig. 8, the targets."""

import collections
import dataclasses

from accuracy.markdown import percent, share_of, table, with_error
from accuracy.scores import pooled_share, ratio, score_of, told_apart

KV_DTYPES = ("fp16", "int8")
# topk reads every key: it has a place among KV sparsities, and none below 1/2 of the bytes.
BY_BYTES = ("sparq", "swa", "h2o", "lm-infinite", "local", "random", "strided")
BY_TOKENS = ("swa", "sparq", "h2o", "topk", "quest", "lm-infinite", "local", "random", "strided")
# SparQ with all channels: the best that so many tokens can do. FlexGen's top-k does not renormalize.
EXACT = "exact scores"
CHOOSE_EXACTLY = tuple(word for one in ("rank=65536", "local=0", "reallocate=off")
                       for word in ("--attention-option", f"sparq.{one}"))
# SparQ with as many bytes for scores as for tokens, where `triphase eval` divides them otherwise.
EVEN = "sparq, bytes divided evenly"
DIVIDED = "1/8"
DIVISION_TASKS = ("perplexity", "repetition", "needle")
OBSERVED = ("swa", "sparq", "h2o", "lm-infinite", "local")
# Pages small enough for these contexts; the first layers are as sparse as the others, for a fair budget.
OPTIONS = ("--attention-option", "quest.dense_layers=0")


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is asked of the methods, per KV type. The targets need 0.8 and 1/8 of both."""
    sparsities: dict
    compressions: dict
    depths: tuple = (0, 0.25, 0.5, 0.75, 1)

    def left_out(self, full):
        """What of the full grid is not measured, for people."""
        parts = []
        for dtype in KV_DTYPES:
            for name, mine, whole in (("KV sparsities", self.sparsities, full.sparsities),
                                      ("compressions", self.compressions, full.compressions)):
                missing = [one for one in whole[dtype] if one not in mine[dtype]]
                if missing:
                    parts.append(f"{name} {', '.join(missing)} with {dtype.upper()} KV")
        return parts


ALL_SPARSITIES = ("0.2", "0.4", "0.6", "0.8", "0.9")
ALL_COMPRESSIONS = ("1/2", "1/4", "1/8")
FULL = Grid(dict.fromkeys(KV_DTYPES, ALL_SPARSITIES), dict.fromkeys(KV_DTYPES, ALL_COMPRESSIONS))
USUAL = Grid({"fp16": ("0.4", "0.6", "0.8", "0.9"), "int8": ("0.8", "0.9")},
             {"fp16": ALL_COMPRESSIONS, "int8": ("1/8",)})
QUICK = Grid(dict.fromkeys(KV_DTYPES, ("0.8",)), dict.fromkeys(KV_DTYPES, ("1/8",)), (0, 1))


@dataclasses.dataclass(frozen=True)
class Job:
    """One `triphase eval`: a task over a sweep."""
    task: str
    sweep: tuple
    cells: int
    label: str = ""  # instead of the method's name


def evenly_divided(channels):
    """Options that spend half of DIVIDED of the bytes on scores: both K and V of a token have `channels`."""
    share = share_of(DIVIDED)
    return tuple(word for one in (f"rank={round(channels * share)}", f"k_ratio={share / 2}")
                 for word in ("--attention-option", f"sparq.{one}"))


def jobs_of(task, window, grid, channels):
    if task == "attention":
        return [Job(task, ("--attention", ",".join(OBSERVED), "--kv-sparsity", "0.8"), len(OBSERVED))]
    more = ()
    if task == "needle":
        lengths = ",".join(map(str, (window // 2, window - 48)))
        more = ("--lengths", lengths, "--depths", ",".join(map(str, grid.depths)))
    jobs = []
    for dtype in KV_DTYPES:
        by_bytes = ("--attention", ",".join(("dense", *BY_BYTES)), "--compression", ",".join(grid.compressions[dtype]))
        jobs.append(Job(task, (*by_bytes, "--kv-dtype", dtype, *more), 1 + len(BY_BYTES) * len(grid.compressions[dtype])))
        if task == "perplexity":
            by_tokens = ("--attention", ",".join(BY_TOKENS), "--kv-sparsity", ",".join(grid.sparsities[dtype]))
            jobs.append(Job(task, (*by_tokens, "--kv-dtype", dtype, *OPTIONS), len(BY_TOKENS) * len(grid.sparsities[dtype])))
    jobs.append(Job(task, ("--attention", "sparq", *evenly_divided(channels), "--kv-dtype", "fp16", *more), 1, EVEN))
    if task == "perplexity":
        jobs.append(Job(task, ("--attention", "sparq", *CHOOSE_EXACTLY, "--kv-sparsity",
                               ",".join(grid.sparsities["fp16"]), "--kv-dtype", "fp16"), len(grid.sparsities["fp16"]), EXACT))
    return jobs


def measure(program, model, task, grid, budget, limits):
    """(rows, samples) of a task over the whole grid."""
    jobs = jobs_of(task, program.window, grid, program.channels(model))
    attentions = ("--attention", "swa,sparq,h2o", "--kv-sparsity", "0.8")

    def probe(count):
        program.eval(model, task, count, *attentions, *(jobs[0].sweep[-4:] if task == "needle" else ()))
        return 3

    count = budget.count((model, task), limits, sum(job.cells for job in jobs), probe)
    rows = []
    for job in jobs:
        for row in program.eval(model, task, count, *job.sweep):
            rows.append(row | {"attention": job.label or row["attention"]})
    return rows, count


def same(a, b):
    return a == b if isinstance(b, str) else isinstance(a, (int, float)) and abs(a - b) < 1e-9


class Results:
    """Rows of all tasks, looked up by what was asked."""

    def __init__(self, grid):
        self.grid = grid
        self.rows = collections.defaultdict(list)

    def cells(self, model, task, method, dtype, **wanted):
        return [row for row in self.rows[(model, task)]
                if row["attention"] == method and row["kv_dtype"] == dtype
                and all(row.get(name) is not None and same(row[name], value) for name, value in wanted.items())]

    def score(self, model, task, method, dtype, **wanted):
        if task == "needle":
            return pooled_share(self.needles(model, method, dtype, **wanted), "needle", "samples")
        return score_of(self.cells(model, task, method, dtype, **wanted)[0], task)

    def needles(self, model, method, dtype, **wanted):
        """One row for each length and depth."""
        return [row for row in self.cells(model, "needle", method, dtype, **wanted) if row["length"] != "all"]

    def observed(self, model, method):
        """(over all layers, the layers' rows) of the attention task."""
        rows = [row for row in self.rows[(model, "attention")] if row["attention"] == method]
        return (next(row for row in rows if row["layer"] == "all"), [row for row in rows if row["layer"] != "all"])


def compression_table(results, model, task, dtype, digits):
    """A block in the form of SparQ's Table 2."""
    compressions = results.grid.compressions[dtype]
    rows = [["dense", with_error(*results.score(model, task, "dense", dtype), digits)] + [""] * len(compressions)]
    for method in BY_BYTES:
        rows.append([method, "", *(with_error(*results.score(model, task, method, dtype, compression=share_of(one)), digits)
                                   for one in compressions)])
    return table([f"{task}, KV {dtype}", "1", *compressions], rows)


def needle_table(results, model, dtype):
    """A block in the form of SparQ's Table 3."""
    rows = []
    for length in dict.fromkeys(row["length"] for row in results.needles(model, "dense", dtype)):
        dense = percent(*results.score(model, "needle", "dense", dtype, length=length))
        rows.append([f"{length} tokens", "1", *[dense] * len(BY_BYTES)])
        for one in results.grid.compressions[dtype]:
            rows.append(["", one, *(percent(*results.score(model, "needle", method, dtype, length=length,
                                                          compression=share_of(one))) for method in BY_BYTES)])
    return table([f"needle, KV {dtype}", "compression", *BY_BYTES], rows)


def sparsity_table(results, model, dtype):
    """A block in the form of ALISA's Fig. 8: perplexity by KV sparsity."""
    sparsities = results.grid.sparsities[dtype]
    rows = [["dense", with_error(*results.score(model, "perplexity", "dense", dtype)), *[""] * len(sparsities)]]
    for method in (*BY_TOKENS, *((EXACT,) if dtype == "fp16" else ())):
        rows.append([method, "", *(with_error(*results.score(model, "perplexity", method, dtype, kv_sparsity=float(one)))
                                   for one in sparsities)])
    return table([f"perplexity, KV {dtype}", "0 %", *(f"{100 * float(one):.0f} %" for one in sparsities)], rows)


@dataclasses.dataclass(frozen=True)
class Target:
    """A share of dense attention's score that a method shall have, and what the controls have at the same bytes."""
    model: str
    method: str
    task: str
    what: str
    least: bool  # at least `bound`, or at most
    bound: float
    found: tuple
    controls: dict

    def meets(self, found):
        return found[0] >= self.bound if self.least else found[0] <= self.bound

    @property
    def met(self):
        return self.meets(self.found)

    @property
    def met_by_controls(self):
        return [name for name, found in self.controls.items() if self.meets(found)]

    @property
    def counts(self):
        return self.met and not self.met_by_controls

    @property
    def verdict(self):
        if not self.met:
            return "**missed**"
        if not self.met_by_controls:
            return "met"
        return f"met, but so {'do' if len(self.met_by_controls) > 1 else 'does'} {' and '.join(self.met_by_controls)}"


def controls_of(method):
    """Methods that choose without looking at the text."""
    return ("random", "local") if method in ("sparq", "swa") else ("random",)


def targets(results, models):
    """The accuracy targets of the project, as shares of dense attention's score."""
    all_targets = []
    for model in models:
        dense = results.score(model, "perplexity", "dense", "fp16")

        def found(method, whole=dense, of=model):
            return ratio(results.score(of, "perplexity", method, "int8", kv_sparsity=0.8), whole)

        all_targets.append(Target(model, "swa", "perplexity", "SWA at 80 % KV sparsity with INT8, perplexity beside dense FP16",
                                  False, 1.05, found("swa"), {one: found(one) for one in controls_of("swa")}))
        for task in ("repetition", "needle"):
            shares = {method: ratio(results.score(model, task, method, "fp16", compression=1 / 8),
                                    results.score(model, task, "dense", "fp16"))
                      for method in ("sparq", "lm-infinite", "local", "random")}
            for method, least in (("sparq", True), ("lm-infinite", False), ("local", False)):
                all_targets.append(Target(model, method, task, f"{method} at 1/8 of the bytes, {task} beside dense", least,
                                          0.95 if least else 0.5, shares[method],
                                          {one: shares[one] for one in controls_of(method)}))
    return all_targets


def targets_table(all_targets):
    def control(target, name):
        return with_error(*target.controls[name]) if name in target.controls else ""

    return table(["what", "target", "found", "random", "local", "verdict"],
                 [[f"{one.model}: {one.what}", f"at {'least' if one.least else 'most'} {one.bound:g}", with_error(*one.found, 3),
                   control(one, "random"), control(one, "local"), one.verdict]
                  for one in all_targets])


def division_table(results, models):
    """Both divisions of SparQ's bytes at DIVIDED, on every task by bytes; below it what the numbers tell apart."""
    rows, sentences = [], []
    for model in models:
        for task in DIVISION_TASKS:
            write = percent if task == "needle" else with_error
            usual = results.score(model, task, "sparq", "fp16", compression=share_of(DIVIDED))
            even = results.score(model, task, EVEN, "fp16")
            rows.append([model, task, write(*results.score(model, task, "dense", "fp16")), write(*usual), write(*even)])
            if told_apart(usual, even):
                better = (usual[0] < even[0]) == (task == "perplexity")
                sentences.append(f"{model}, {task}: more channels are {'better' if better else 'worse'} than an even division.")
    if not sentences:
        sentences = ["On no task can the two divisions be told apart."]
    elif len(sentences) < len(rows):
        sentences.append("Elsewhere the two divisions cannot be told apart.")
    return table(["SparQ at 1/8, KV fp16", "task", "dense", "scores take 13/16 (13 channels)", "scores take 1/2 (8 channels)"],
                 rows), sentences


def observed_table(results, models):
    """What the methods keep of dense attention's weights."""
    rows = []
    for model in models:
        for method in OBSERVED:
            row, layers = results.observed(model, method)
            rows.append([model, method, percent(row["coverage"], row["coverage_stderr"]),
                         f"{100 * min(layer['coverage'] for layer in layers):.0f} %",
                         percent(row["top_k_agreement"], row["top_k_agreement_stderr"]),
                         percent(row["attention_sparsity"], row["attention_sparsity_stderr"]),
                         percent(row["dense_attention_sparsity"], row["dense_attention_sparsity_stderr"]),
                         "" if row["spearman"] is None else f"{row['spearman']:.3f}"])
    return table(["at 80 % KV sparsity", "method", "coverage", "of the worst layer", "top-k agreement",
                  "weights below 1 % of the largest", "the same, dense", "Spearman's rho"], rows)


def section(results, model):
    out = [f"### {model} by bytes, as in SparQ's Tables 2 and 3\n"]
    for task, digits in (("perplexity", 2), ("repetition", 1)):
        out += [compression_table(results, model, task, dtype, digits) for dtype in KV_DTYPES]
    out += [needle_table(results, model, dtype) for dtype in KV_DTYPES]
    out.append(f"### {model} by KV sparsity, as in ALISA's Fig. 8\n")
    out += [sparsity_table(results, model, dtype) for dtype in KV_DTYPES]
    return "\n".join(out)
