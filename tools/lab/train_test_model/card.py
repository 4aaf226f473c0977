"""Writes the README, the training log and the scores of an exported model.

Run ``python card.py --work DIR --name mha --out FOLDER`` after evaluate.py and export.py.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

from evaluate import DISTANCES, LENGTHS, WINDOWS
from model import SHAPES, Llama
from work import parser_of

TITLES = {
    "dense": "dense",
    "window_20": "newest 20 %",
    "window_20_with_16_first": "newest 20 % and first 16",
}
INTRODUCTION = """# triphase-{name}

A small LLaMA-style test model: {layers} layers, hidden size {hidden}, {heads} query and
{kv_heads} key-value heads of {head_dim}, {parameters:.2f} million parameters, a SentencePiece
BPE tokenizer of {vocab} pieces, a context of {context} tokens.

It exists to test a runtime: its attention really looks things up, so that what sparse
attention loses can be seen.  It is no assistant, and what it writes is not meant to be true.

## Training

Made by `tools/lab/train_test_model`.  {origin}  Text: the King James Version, the World English
Bible, Matthew Henry's Concise Commentary, the Devil's Dictionary, the Jargon File, two
translations of the Dhammapada, and Jane Austen's novels, all in the public domain and taken
from Debian packages, mixed with generated facts, questions on them, and repeated passages.
{tokens:,} tokens in {steps:,} steps and {minutes:.0f} minutes on two busy CPU cores;
`metrics.jsonl` has the scores on the way.

## Scores

On held-out text, with the BF16 weights, greedily decoded; {count} cases a number.

Perplexity per token: {ppl_1024:.1f} at a context of 1,024 and {ppl_2048:.1f} at 2,048.

*Repetition*: a passage, other text, and the first 16 tokens of the passage again; the share
of the next 32 tokens repeated right, by the distance back.
*Needle*: the share of the questions about one of four facts in a text that get every digit
right, by length of the prompt and depth of the fact.  *Newest 20 %*: every decoding step sees
only the newest fifth of the positions; the prompt is read densely but for its last token.

"""
ORIGINS = {
    "mha": """The lookup circuit was built and tuned before training (see the head start there):
the codes of tokens, the heads of layer 0 that gather those of the tokens before, and what the
match heads of layer 1 compare.  The codes and the gathering heads then stayed as they were, the
match heads were trained slowly, and everything else was trained.""",
    "gqa": """It starts from triphase-mha, whose heads were merged (`merge.py`) before training
went on, its lookup circuit with them.""",
}


def percent(value: float) -> str:
    """A share as a table cell."""
    return f"{100 * value:.0f} %"


def row(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |\n"


def tables(scores: dict) -> str:
    """The repetition table and the needle table of every way of decoding."""
    text = row(["Repetition", *(f"{distance} back" for distance in DISTANCES)])
    text += row(["---"] * (1 + len(DISTANCES)))
    for name in WINDOWS:
        cells = [percent(scores[name][f"repetition_{distance}"]) for distance in DISTANCES]
        text += row([TITLES[name], *cells])
    for name in WINDOWS:
        depths = list(scores[name][f"needle_{LENGTHS[0]}"])
        text += "\n" + row([f"Needle, {TITLES[name]}", *(f"depth {depth}" for depth in depths)])
        text += row(["---"] * (1 + len(depths)))
        for length in LENGTHS:
            cells = [percent(scores[name][f"needle_{length}"][depth]) for depth in depths]
            text += row([f"{length} tokens", *cells])
    return text


def main() -> None:
    """Writes README.md, metrics.jsonl and scores.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--note", default="", help="a last paragraph")
    arguments = parser.parse_args()
    name, work, out = arguments.name, arguments.work, arguments.out

    scores = json.loads((work / f"{name}-scores.json").read_text())
    metrics = (work / f"{name}-metrics.jsonl").read_text().splitlines()
    last, shape = json.loads(metrics[-1]), SHAPES[name]
    introduction = INTRODUCTION.format(
        name=name,
        origin=ORIGINS[name],
        layers=shape.layers,
        hidden=shape.hidden_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        parameters=sum(parameter.numel() for parameter in Llama(shape).parameters()) / 1e6,
        vocab=shape.vocab_size,
        context=shape.context,
        tokens=last["tokens"],
        steps=last["step"],
        minutes=last["minutes"],
        count=scores["cases_per_score"],
        ppl_1024=scores["heldout_perplexity_1024"],
        ppl_2048=scores["heldout_perplexity_2048"],
    )
    note = f"\n{textwrap.fill(arguments.note, 95)}\n" if arguments.note else ""
    (out / "README.md").write_text(introduction + tables(scores) + note)
    shutil.copyfile(work / f"{name}-metrics.jsonl", out / "metrics.jsonl")
    shutil.copyfile(work / f"{name}-scores.json", out / "scores.json")


if __name__ == "__main__":
    main()
