"""Starts the GQA model from the trained MHA model.

Both have the same hidden size, layers and tokenizer, so embeddings, norms and output head
are taken over.  Of every feed-forward block the most active units are kept.  Of every
layer's attention:

* in layer 0 the gathering heads, whose keys are all alike, share the first key-value head;
* in the match layer the match heads come with their own key-value heads;
* otherwise every key-value head is that of one of the strongest MHA heads, and the first
  query head of its group is that head's.

The other query heads start random with no output.  Training goes on from there.

Run ``python merge.py --work DIR`` after train.py has made the MHA model; it writes
DIR/gqa-start.pt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from headstart import (
    CODE_LENGTH,
    GATHERED,
    MATCH_HEADS,
    MATCH_LAYER,
    match_heads,
)
from model import SHAPES, Attention, Llama
from work import open_model, save_start


def strongest(attention: Attention, skip: int) -> list[int]:
    """The heads after the first skip, those with the largest output first."""
    size, heads = attention.shape.head_dim, attention.shape.heads
    value = attention.v_proj.weight.view(heads, size, -1)
    output = attention.o_proj.weight.T.reshape(heads, size, -1)
    strength = torch.einsum("hdi,hdo->hio", value, output).norm(dim=(1, 2))
    return [head for head in strength.argsort(descending=True).tolist() if head >= skip]


def take_head(source: Attention, target: Attention, head: int, key: int, query: int) -> None:
    """Copies a head of source to a key-value head and a query head of target."""
    size = target.shape.head_dim
    rows, to_key = slice(head * size, (head + 1) * size), slice(key * size, (key + 1) * size)
    to_query = slice(query * size, (query + 1) * size)
    target.k_proj.weight[to_key] = source.k_proj.weight[rows]
    target.v_proj.weight[to_key] = source.v_proj.weight[rows]
    target.q_proj.weight[to_query] = source.q_proj.weight[rows]
    target.o_proj.weight[:, to_query] = source.o_proj.weight[:, rows]


def share_first(source: Attention, target: Attention, heads: int) -> None:
    """Lets the first heads of source share the first key-value head of target.

    These heads have the same codes among their values; the rest of the shared values are
    the directions that the heads' outputs depend on most.
    """
    take_head(source, target, 0, 0, 0)
    size = target.shape.head_dim
    rest = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        target.q_proj.weight[rows] = source.q_proj.weight[rows]
        codes = slice(rows.start, rows.start + CODE_LENGTH)
        others = slice(codes.stop, rows.stop)
        target.o_proj.weight[:, codes] = source.o_proj.weight[:, codes]
        rest.append(source.o_proj.weight[:, others] @ source.v_proj.weight[others])
    read = torch.linalg.svd(torch.cat(rest), full_matrices=False).Vh[: size - CODE_LENGTH]
    target.v_proj.weight[CODE_LENGTH:size] = read
    for head, moved in enumerate(rest):
        target.o_proj.weight[:, head * size + CODE_LENGTH : (head + 1) * size] = moved @ read.T


def keep_units(source: Tensor, count: int) -> Tensor:
    """The indices of the units of a feed-forward block with the largest weights."""
    return source.topk(count).indices.sort().values


@torch.no_grad()
def merge(source: Llama, target: Llama) -> None:
    """Sets target's weights from source's."""
    group = target.shape.heads // target.shape.kv_heads
    target.embed_tokens.weight.copy_(source.embed_tokens.weight)
    target.lm_head.weight.copy_(source.lm_head.weight)
    target.norm.weight.copy_(source.norm.weight)
    for number, (old, new) in enumerate(zip(source.layers, target.layers)):
        new.input_layernorm.weight.copy_(old.input_layernorm.weight)
        new.post_attention_layernorm.weight.copy_(old.post_attention_layernorm.weight)
        first, second = old.mlp, new.mlp
        size = first.down_proj.weight.norm(dim=0) * first.up_proj.weight.norm(dim=1)
        kept = keep_units(size * first.gate_proj.weight.norm(dim=1), target.shape.intermediate_size)
        second.gate_proj.weight.copy_(first.gate_proj.weight[kept])
        second.up_proj.weight.copy_(first.up_proj.weight[kept])
        second.down_proj.weight.copy_(first.down_proj.weight[:, kept])
        attention, shared = old.self_attn, new.self_attn
        if number == 0:
            share_first(attention, shared, len(GATHERED))
            continue
        taken = 0
        if number == MATCH_LAYER:
            for head, query in enumerate(match_heads(target)):
                take_head(attention, shared, head, head, query)
            taken = MATCH_HEADS
        others = strongest(attention, skip=taken)
        for key, head in zip(range(taken, target.shape.kv_heads), others):
            take_head(attention, shared, head, key, key * group)


def main() -> None:
    """Parses the command line and merges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    source, saved = open_model(arguments.work, "mha")
    target = Llama(SHAPES["gqa"])
    merge(source, target)
    save_start(arguments.work, "gqa", target, saved["progress"]["match_spread"])


if __name__ == "__main__":
    main()
