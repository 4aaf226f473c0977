"""Why a target is missed and how ours stands beside the papers, in sentences that the numbers choose."""

from accuracy.markdown import percent, share_of, with_error
from accuracy.methods import EXACT
from accuracy.papers import SPARQ_NEEDLE, SPARQ_REPETITION, compare
from accuracy.scores import ratio, told_apart
from accuracy.sparq_ablations import findings as ablation_findings


def coverage_of(results, model, method):
    row, layers = results.observed(model, method)
    worst = min(layers, key=lambda layer: layer["coverage"])
    return (row["coverage"], row["coverage_stderr"]), worst


def swa_reason(results, target):
    """Perplexity at 80 % KV sparsity: the budget, the choice, or INT8?"""
    model = target.model
    dense = results.score(model, "perplexity", "dense", "fp16")
    exact = ratio(results.score(model, "perplexity", EXACT, "fp16", kv_sparsity=0.8), dense)
    plain = ratio(results.score(model, "perplexity", "swa", "fp16", kv_sparsity=0.8), dense)
    int8 = ratio(results.score(model, "perplexity", "dense", "int8"), dense)
    swa, worst = coverage_of(results, model, "swa")
    sparq, _ = coverage_of(results, model, "sparq")
    sentences = [f"{model}, SWA at 80 %: {with_error(*plain, 3)} of dense perplexity without INT8, dense with INT8 "
                 f"{with_error(*int8, 3)}, so that {'INT8' if int8[0] - 1 > plain[0] - 1 else 'the choice of tokens'} costs more."]
    if exact[0] <= 1.05:
        sentences.append(f"As many tokens chosen by exact scores give {with_error(*exact, 3)}: so many are enough, and "
                         "those that SWA keeps, chosen before the query is known, are not the ones.")
    else:
        sentences.append(f"As many tokens chosen by exact scores give {with_error(*exact, 3)}: so few tokens are not "
                         "enough for this model, whoever chooses them.")
    sentences.append(f"SWA's tokens hold {percent(*swa)} of dense attention's weight, {100 * worst['coverage']:.0f} % in layer "
                     f"{worst['layer']}; SparQ's, as many, {percent(*sparq)}.")
    return sentences


def sparq_reason(ablations, target):
    if target.task != "repetition":
        return []
    return [f"{target.model}, SparQ at 1/8, repetition: " + one[0].lower() + one[1:]
            for one in ablation_findings(ablations) if one.startswith(("At 1/8", "With "))]


def window_reason(results, target):
    """A method that sees fixed places finds the needles that lie there."""
    if target.task != "needle":
        return []
    rows = results.needles(target.model, target.method, "fp16", compression=1 / 8)
    by_depth = {}
    for row in rows:
        by_depth.setdefault(row["depth"], []).append(row["needle"])
    found = ", ".join(f"{100 * sum(all_found) / len(all_found):.0f} % at depth {depth:g}" for depth, all_found in by_depth.items())
    return [f"{target.model}, {target.method} at 1/8, needle: found {found} (0 is the text's beginning, 1 right before the "
            "question)."]


def target_reasons(results, ablations, targets):
    sentences = []
    for target in targets:
        if target.met:
            continue
        if target.method == "swa":
            sentences += swa_reason(results, target)
        elif target.method == "sparq":
            sentences += sparq_reason(ablations[target.model], target)
        else:
            sentences += window_reason(results, target)
    return sentences


def paper_comparisons(results, model):
    sentences = []
    for task, published in (("repetition", SPARQ_REPETITION), ("needle", SPARQ_NEEDLE)):
        dense = results.score(model, task, "dense", "fp16")
        for (method, compression), shares in published.items():
            if dense[0] == 0 or compression not in results.grid.compressions["fp16"]:
                continue
            found = ratio(results.score(model, task, method, "fp16", compression=share_of(compression)), dense)
            table = "Table 2" if task == "repetition" else "Table 3"
            sentences.append(compare(f"{model}, {task}, {method} at {compression}", found, shares, table))
    return sentences


def better_than_dense(results, model):
    """Perplexity that falls when far tokens are left out."""
    dense = results.score(model, "perplexity", "dense", "fp16")
    shares = {method: results.score(model, "perplexity", method, "fp16", kv_sparsity=0.8)[0] / dense[0]
              for method in ("swa", "lm-infinite")}
    if max(shares.values()) > 0.97:
        return []
    found = " and ".join(f"{method} {share:.2f}" for method, share in shares.items())
    return [f"{model}: at 80 % KV sparsity perplexity falls, to {found} of dense attention's: what lies far back misleads this "
            "model more than it helps. The heads by which it repeats passages and finds needles were strengthened after "
            "training (tools/lab/train_test_model). That has a price in perplexity, which methods that see little of the past do "
            "not pay."]


def first_tokens_suffice(results, model):
    """Whether a window with the text's first tokens, which chooses nothing either, reaches SWA's target too."""
    share = ratio(results.score(model, "perplexity", "lm-infinite", "int8", kv_sparsity=0.8),
                  results.score(model, "perplexity", "dense", "fp16"))
    if share[0] > 1.05:
        return []
    return [f"{model}: SWA's perplexity says little about its choice. lm-infinite, the first tokens and a window, meets the "
            f"target as well ({with_error(*share, 3)})."]


def same_order(results, model):
    """Whether methods that choose by the query beat those that do not, where the papers say so."""
    sentences = []
    for task in ("repetition", "needle"):
        sparq = results.score(model, task, "sparq", "fp16", compression=1 / 8)
        beaten = [method for method in ("h2o", "lm-infinite", "local", "random")
                  if told_apart(sparq, results.score(model, task, method, "fp16", compression=1 / 8))
                  and sparq[0] > results.score(model, task, method, "fp16", compression=1 / 8)[0]]
        if beaten:
            sentences.append(f"{model}, {task} at 1/8: SparQ is ahead of {', '.join(beaten)} by more than two standard errors.")
    return sentences


def lost_by(named, score, dense, control, write):
    """One task: what SWA has of dense attention's score, beside the local window of its bytes."""
    said = f"{named} {write(*score)} (dense {write(*dense)}, local {write(*control)})"
    if told_apart(score, control):
        return f"{said}, {'more' if score[0] > control[0] else 'less'} than a local window"
    return said


def swa_losses(results, questions, model):
    """What SWA cannot find again, which perplexity does not show."""
    sentences = []
    for task, write in (("repetition", lambda *of: with_error(*of, 1)), ("needle", percent)):
        dense = results.score(model, task, "dense", "fp16")
        parts, lost = [], False
        for one in results.grid.compressions["fp16"]:
            swa, local = (results.score(model, task, method, "fp16", compression=share_of(one)) for method in ("swa", "local"))
            lost = lost or (told_apart(swa, dense) and swa[0] < dense[0])
            parts.append(lost_by(f"at {one}", swa, dense, local, write))
        said = {"repetition": "characters repeated", "needle": "needles found"}[task]
        sentences.append(f"{model}, SWA by bytes, {said}: {'; '.join(parts)}. "
                         + ("It loses what stands far back." if lost else "No loss can be told with these errors."))
    sparsity = questions.sparsities[-1]
    swa, local = questions.score("swa", sparsity), questions.score("local", sparsity)
    dense = questions.score("dense")
    share = questions.attended("swa", sparsity)
    sentences.append(f"{model}, SWA with {100 * (1 - share):.0f} % of the tokens left out (the column {sparsity} below), "
                     f"questions about a fixed context: {'none answered' if swa[0] == 0 else percent(*swa)} "
                     f"(dense {percent(*dense)}, local {percent(*local)}). "
                     + ("It loses them." if told_apart(swa, dense) and swa[0] < dense[0] else "No loss can be told."))
    return sentences
