"""Makes a trained model trust its match heads more.

Short training leaves the copied codes too weak beside what the other heads guess: one guess
that wins over the copy ends a repetition.  This scales the match heads' queries and the codes
that they write, lowers what they give the first position where little matches, all at a small
cost in perplexity, and rewrites DIR/NAME.pt.

Run ``python strengthen.py --work DIR --name mha`` after train.py.  With ``--gathering`` it also
sharpens layer 0's gathering heads: everything above has to get used to that, so train on.
"""

from __future__ import annotations

import torch

from headstart import (
    CODE_LENGTH,
    FIRST_POSITION,
    MATCH_HEADS,
    MATCH_LAYER,
    SINK_PAIR,
    head_rows,
    match_heads,
    sharpen_gathering,
)
from model import Llama
from work import open_model, parser_of


@torch.no_grad()
def strengthen(model: Llama, sharpness: float, gain: float, sink: float) -> None:
    """Scales weights of the match heads: their queries by sharpness, their output of codes by gain,
    the first position's key by sink."""
    attention = model.layers[MATCH_LAYER].self_attn
    for head in match_heads(model):
        rows = head_rows(model, head)
        attention.q_proj.weight[rows] *= sharpness
        attention.o_proj.weight[:, rows.start : rows.start + CODE_LENGTH] *= gain
    for head in range(MATCH_HEADS):
        row = head_rows(model, head).start + SINK_PAIR
        attention.k_proj.weight[row, FIRST_POSITION] *= sink


def main() -> None:
    """Parses the command line and rewrites the checkpoint."""
    parser = parser_of(__doc__)
    parser.add_argument("--sharpness", type=float, default=1.0)
    parser.add_argument("--gain", type=float, default=2.0)
    parser.add_argument("--sink", type=float, default=0.88)
    parser.add_argument("--gathering", type=float, default=1.0)
    arguments = parser.parse_args()
    model, saved = open_model(arguments.work, arguments.name)
    strengthen(model, arguments.sharpness, arguments.gain, arguments.sink)
    sharpen_gathering(model, arguments.gathering)
    torch.save(saved | {"model": model.state_dict()}, arguments.work / f"{arguments.name}.pt")


if __name__ == "__main__":
    main()
