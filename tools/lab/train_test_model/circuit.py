"""Tunes the lookup circuit of headstart.py alone, before the model itself is trained.

Only layer 0's attention and the match heads' scores are computed.  The loss is that of
attending to the right place: on repeated text and answers, to the token that followed
earlier; on text not seen before, to the first position.  Trained are the tokens' codes,
layer 0's queries and keys, and the match heads' queries and keys.

Run ``python circuit.py --work DIR --name mha``; it writes DIR/NAME-start.pt, with which
train.py begins.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from torch import Tensor

from headstart import (
    BACK,
    BOS,
    CONSTANT,
    FIRST_POSITION,
    GATHERED,
    MATCH_HEADS,
    MATCH_LAYER,
    RECENT,
    TOKEN,
    head_rows,
    head_start,
    match_heads,
    match_spread,
    set_found,
    sharpen_gathering,
)
from model import SHAPES, Llama, rotate
from synthetic import QUESTION, Fact, Sampler, random_fact
from work import open_model, open_sampler, parser_of, probe_of, save_start

EACH_HEAD_WEIGHT = 0.3


def looked_up(sampler: Sampler, length: int, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids that begin with BOS, and for every position where to look: -1 for no matter where.

    Position t looks where the token that comes after t can be read, at 0 if it is new.  Of a
    repeated passage at least the shortest number of tokens come before the first that has to.
    """
    rng, tokenizer = sampler.rng, sampler.tokenizer
    ids: list[int] = [sampler.bos]
    look: list[int] = [0]
    facts: list[tuple[Fact, int]] = []
    position = sampler.text_start(length)
    while len(ids) < length:
        draw = rng.random()
        if draw < 0.25 and len(ids) > 64:
            cue = shortest + int(rng.integers(0, 4))
            count = cue + int(rng.integers(6, 40))
            start = int(rng.integers(1, len(ids) - 48))
            for step in range(min(count, len(ids) - start)):
                look[-1] = start + step if step >= cue else -1
                ids.append(ids[start + step])
                look.append(-1)
        elif draw < 0.33 or not facts and draw < 0.45:
            fact = random_fact(rng)
            facts.append((fact, len(ids)))
            for token in tokenizer.encode(fact.statement):
                ids.append(token)
                look.append(-1)
        elif draw < 0.5 and facts:
            fact, start = facts[int(rng.integers(len(facts)))]
            asked = sampler.line(QUESTION.format(question=fact.question, answer="").rstrip())
            ids += asked
            look += [-1] * len(asked)
            statement = tokenizer.encode(fact.statement)
            known = len(tokenizer.encode(fact.lead()))
            for step, token in enumerate(statement):
                look[-1] = start + step if step >= known - 1 else -1
                ids.append(token)
                look.append(-1)
        else:
            count = int(rng.integers(16, 200))
            if position + count >= len(sampler.stream):
                position = sampler.text_start(length)
            new = sampler.stream[position : position + count].tolist()
            position += count
            ids += new
            look += [0] * len(new)
            look[-1] = -1
    return np.array(ids[:length]), np.array(look[:length])


def relieve(ids: np.ndarray, look: np.ndarray) -> None:
    """Lets new text look anywhere where its last three tokens were there before."""
    seen: set[tuple[int, ...]] = set()
    for place in range(2, len(ids)):
        last = tuple(ids[place - 2 : place + 1].tolist())
        if look[place] == 0 and last in seen:
            look[place] = -1
        seen.add(last)


def right_places(ids: np.ndarray, look: np.ndarray) -> np.ndarray:
    """For every position that has to look somewhere, all places where the same two tokens and
    the same next one were, [positions, length]."""
    asking = np.flatnonzero(look > 0)
    places = ids[None, :] == ids[look[asking], None]
    for back in (1, 2):
        before = np.concatenate((np.full(back, -1), ids[:-back]))
        places &= before[None, :] == before[look[asking], None]
    return places


def match_scores(model: Llama, ids: Tensor) -> Tensor:
    """Log-probabilities of the match heads' attention, [heads, length, length]."""
    length = ids.shape[1]
    x = model.embed_tokens(ids)
    cos, sin = model.cos[:length], model.sin[:length]
    for layer in model.layers[:MATCH_LAYER]:
        x, _ = layer(x, cos, sin, None, None)
    match = model.layers[MATCH_LAYER]
    attention, x = match.self_attn, match.input_layernorm(x)
    query = rotate(attention.split(attention.q_proj(x)), cos, sin)[0, match_heads(model)]
    key = rotate(attention.split(attention.k_proj(x)), cos, sin)[0, :MATCH_HEADS]
    scores = query @ key.mT * model.shape.head_dim**-0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -1e9).log_softmax(-1)


def circuit_masks(model: Llama, matching_only: bool) -> dict[str, Tensor]:
    """One where a weight belongs to the circuit and is tuned here, by parameter name.

    Once layer 0 is trained, the match heads may read whatever it wrote, not the codes alone.
    """
    size, named, masks = model.shape.head_dim, dict(model.named_parameters()), {}
    read = torch.zeros(model.shape.hidden_size)
    read[CONSTANT] = 1.0
    if matching_only:
        read[:] = 1.0
    else:
        codes = torch.zeros_like(named["embed_tokens.weight"])
        codes[BOS + 2 :, TOKEN] = 1.0
        masks["embed_tokens.weight"] = codes
        name = "layers.0.self_attn.q_proj.weight"
        masks[name] = torch.zeros_like(named[name])
        masks[name][: len(GATHERED) * size] = read
    for channels in (FIRST_POSITION, TOKEN, *BACK, RECENT):
        read[channels] = 1.0
    for kind, heads in (("q", match_heads(model)), ("k", range(MATCH_HEADS))):
        name = f"layers.{MATCH_LAYER}.self_attn.{kind}_proj.weight"
        masks[name] = torch.zeros_like(named[name])
        for head in heads:
            masks[name][head_rows(model, head)] = read
    return masks


def tune(model: Llama, sampler: Sampler, arguments: argparse.Namespace) -> None:
    """Trains the circuit's weights for a time."""
    masks = circuit_masks(model, arguments.again)
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        parameter.requires_grad_(name in masks)
    optimiser = torch.optim.Adam([named[name] for name in masks], betas=(0.9, 0.98))
    started, step, mean = time.monotonic(), 0, np.zeros(3)
    while (progress := (time.monotonic() - started) / 60 / arguments.minutes) < 1.0:
        for group in optimiser.param_groups:
            group["lr"] = arguments.rate * min(1.0, (step + 1) / 20) * (1.02 - progress)
        ids, look = looked_up(sampler, arguments.length, arguments.cue)
        relieve(ids, look)
        target = torch.from_numpy(look)
        if not (target > 0).any():
            continue
        log_share = match_scores(model, torch.from_numpy(ids)[None].long())
        places = torch.from_numpy(right_places(ids, look))
        found = log_share[:, target > 0].masked_fill(~places, -1e9).logsumexp(-1)
        each = -found.clamp(min=-20.0)
        together = math.log(MATCH_HEADS) - found.logsumexp(0).clamp(min=-20.0)
        old = (together.mean() + EACH_HEAD_WEIGHT * each.mean()) / (1.0 + EACH_HEAD_WEIGHT)
        new = -log_share[:, target == 0, 0].clamp(min=-20.0).mean()
        optimiser.zero_grad()
        (old + arguments.new_text * new).backward()
        for name, mask in masks.items():
            named[name].grad *= mask
        optimiser.step()
        right = (together < 0.69).float().mean().item()
        mean += 0.04 * (np.array([old.item(), new.item(), right]) - mean)
        step += 1
        if step % 25 == 0:
            repeated, fresh, found = mean / (1 - 0.96**step)
            print(f"{step} steps: repeated {repeated:.3f} new {fresh:.3f} found {found:.4f}", flush=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def main() -> None:
    """Parses the command line, tunes and saves."""
    parser = parser_of(__doc__)
    parser.add_argument("--again", action="store_true", help="tune the match heads of NAME.pt")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--length", type=int, default=1536)
    parser.add_argument("--cue", type=int, default=6, help="tokens before a repetition must be found")
    parser.add_argument("--new-text", type=float, default=0.6, help="weight of the loss on new text")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--gathering", type=float, default=1.5, help="factor once tuned")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(arguments.seed)
    work, name = arguments.work, arguments.name
    sampler = open_sampler(work, "train", arguments.seed)
    if arguments.again:
        model, saved = open_model(work, name)
        tune(model, sampler, arguments)
        torch.save(saved | {"model": model.state_dict()}, work / f"{name}.pt")
        return
    model = Llama(SHAPES[name])
    head_start(model, sampler.stream)
    tune(model, sampler, arguments)
    sharpen_gathering(model, arguments.gathering)
    set_found(model)
    save_start(work, name, model, match_spread(model, probe_of(sampler.stream)))


if __name__ == "__main__":
    main()
