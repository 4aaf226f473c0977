"""A start for training in which a passage already finds its earlier copy.

From random weights, attention that looks things up appears suddenly and only after many
millions of tokens.  Some heads and channels therefore start as such a circuit:

* Every embedding holds a constant, and a code of the token: a word of the binary Golay
  code, so that the codes of two tokens agree in at most two thirds of their places.
* In layer 0 three heads attend to the tokens 1, 2 and 3 back, and a fourth to the last
  dozen together.  Each writes the codes it finds into channels of its own.  Their queries
  and keys read only the constant; the rotary phases do the rest.
* In the match layer, two heads compare the current token, the two before it and the last
  dozen with the three tokens before every earlier one and the dozen there, in the slowly
  rotating channels, and so attend to what followed the same passage earlier.  Where nothing
  matches well enough they attend to the first position, whose value is nothing.
* They copy the code found to channels from which the output head reads it.

The output head and the rest of the embeddings start at a bigram model of the text.
Everything else starts random, with no output.  circuit.py then tunes the circuit alone,
and train.py trains the model; ``rates`` says what stays as it is there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from model import FINAL_NORM, Llama

CODE_LENGTH = 24

# Channels of the residual stream.
CONSTANT = 0
FIRST_POSITION = 1
TOKEN = slice(2, 26)
BACK = (slice(26, 50), slice(50, 74), slice(74, 98))
RECENT = slice(98, 122)
FOUND = slice(122, 146)
FILL = 146
MEANING = slice(147, 256)

CONSTANT_SIZE = 2.0
CODE_SIZE = 0.5
MEANING_NORM = 6.0
READ_SIZE = 2.5
COPY_GAIN = 2.0
BOS = 1
BIGRAM_BACKOFF = 20.0

# Layer 0's heads: where each writes, and how far back it looks (0: the last dozen).
GATHERED = ((BACK[0], 1), (BACK[1], 2), (BACK[2], 3), (RECENT, 0))
OFFSET_SHARPNESS = 2.2
OFFSET_PAIRS = 9
RECENT_CENTRE, RECENT_CURVE, RECENT_FLOOR = 5.0, 0.06, 14.0
RECENT_GAIN = 3.0

# The match heads: a whole match has the logit MATCH, of which every part has a share.
MATCH_LAYER = 1
MATCH_HEADS = 2
MATCH = 40.0
SHARES = (1.0, 1.0, 1.0, 0.5)
SINK_SHARE = 0.55
SLOW_PAIRS = slice(16, 31)
SINK_PAIR = 31
MATCH_RATE = 0.1


def golay_codes(count: int) -> Tensor:
    """The first words of the extended binary Golay code as rows of +-1, [count, 24].

    Two words of the first 2,048 differ in 8, 12 or 16 places.
    """
    words = []
    for message in range(count):
        word = 0
        for bit in range(12):
            if message >> bit & 1:
                word ^= 0b110001110101 << bit
        bits = [word >> bit & 1 for bit in range(23)]
        words.append([*bits, sum(bits) % 2])
    return 2.0 * torch.tensor(words) - 1.0


def head_rows(model: Llama, head: int) -> slice:
    """The rows of a projection that belong to a head."""
    size = model.shape.head_dim
    return slice(head * size, (head + 1) * size)


def key_heads(model: Llama, heads: int) -> int:
    """How many key-value heads the first query heads use."""
    return -(-heads * model.shape.kv_heads // model.shape.heads)


def match_heads(model: Llama) -> list[int]:
    """The match heads: the first query heads of as many key-value heads, so that each of them
    compares with keys of its own."""
    group = model.shape.heads // model.shape.kv_heads
    return [key_head * group for key_head in range(MATCH_HEADS)]


def rope_angles(model: Llama) -> Tensor:
    """The angle per position of every rotary pair."""
    half = model.shape.head_dim // 2
    return model.shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)


def offset_query(model: Llama, offset: int) -> Tensor:
    """The query that, against keys of one in the first of every pair, prefers a distance."""
    query = torch.zeros(model.shape.head_dim)
    angles = offset * rope_angles(model)[:OFFSET_PAIRS]
    half = model.shape.head_dim // 2
    query[:OFFSET_PAIRS] = OFFSET_SHARPNESS * angles.cos()
    query[half : half + OFFSET_PAIRS] = -OFFSET_SHARPNESS * angles.sin()
    return query


def recent_query(model: Llama) -> Tensor:
    """The query that, against such keys, prefers the last dozen tokens.

    A least-squares fit of the logits over the distance to a parabola with a floor; a small
    ridge keeps the weights within what BF16 resolves.
    """
    distance = torch.arange(model.shape.context, dtype=torch.float64)
    wanted = -(RECENT_CURVE * (distance - RECENT_CENTRE) ** 2).clamp(max=RECENT_FLOOR)
    weight = torch.where(distance < 40, 30.0, 1.0).double()
    turns = torch.outer(distance, rope_angles(model))
    basis = torch.cat((turns.cos(), -turns.sin(), torch.ones(len(distance), 1)), 1)
    ridge = 3.0 * torch.eye(basis.shape[1], dtype=torch.float64)
    system = basis.T @ (weight[:, None] * basis) + ridge
    return torch.linalg.solve(system, basis.T @ (weight * wanted))[:-1].float()


def bigram_factors(stream: np.ndarray, vocab: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Low-rank factors of the log-ratios of next-token to overall probabilities, and the
    logarithms of the latter."""
    pairs = stream[:-1].astype(np.int64) * vocab + stream[1:]
    counts = torch.bincount(torch.from_numpy(pairs), minlength=vocab * vocab).float()
    counts = counts.view(vocab, vocab)
    overall = (counts.sum(0) + 0.5) / (counts.sum() + 0.5 * vocab)
    times = counts.sum(1, keepdim=True)
    after = (counts + BIGRAM_BACKOFF * overall) / (times + BIGRAM_BACKOFF)
    weight = (times + BIGRAM_BACKOFF) ** 0.25
    left, singular, right = torch.svd_lowrank(weight * (after / overall).log(), q=rank, niter=4)
    turn = torch.linalg.qr(torch.randn(rank, rank)).Q
    root = singular.sqrt()
    return left * root / weight @ turn, right * root @ turn, overall.log()


def set_embeddings(model: Llama, stream: np.ndarray) -> None:
    """The constant, the codes and the bigram model."""
    vocab = model.shape.vocab_size
    embedding, head = model.embed_tokens.weight, model.lm_head.weight
    codes = golay_codes(vocab)
    codes[: BOS + 1] = 0.0
    before, after, overall = bigram_factors(stream, vocab, MEANING.stop - MEANING.start)
    embedding.zero_()
    embedding[:, CONSTANT] = CONSTANT_SIZE
    embedding[BOS, FIRST_POSITION] = CONSTANT_SIZE
    embedding[:, TOKEN] = CODE_SIZE * codes
    # Every embedding gets the same norm, so that after a norm the codes always weigh the same.
    norms = before.norm(dim=1, keepdim=True)
    most = 2.0 * norms.mean()
    scale = MEANING_NORM / most
    meaning = scale * before * (most / norms.clamp(min=1e-6)).clamp(max=1.0)
    embedding[:, MEANING] = meaning
    embedding[:, FILL] = (MEANING_NORM**2 - meaning.pow(2).sum(1)).clamp(min=0.0).sqrt()
    size = embedding.pow(2).mean().sqrt()
    head.normal_(std=0.02)
    head[:, CONSTANT] = overall * size / (CONSTANT_SIZE * FINAL_NORM)
    head[:, MEANING] = after / scale * size / FINAL_NORM


def set_gathering(model: Llama) -> None:
    """The heads of layer 0 that gather the codes of the tokens before."""
    size, attention = model.shape.head_dim, model.layers[0].self_attn
    gathering = key_heads(model, len(GATHERED))
    spread = model.embed_tokens.weight.pow(2).mean().sqrt()
    constant = CONSTANT_SIZE / spread
    attention.q_proj.weight[: len(GATHERED) * size] = 0.0
    attention.k_proj.weight[: gathering * size] = 0.0
    for head in range(gathering):
        first = head_rows(model, head).start
        attention.k_proj.weight[first : first + size // 2, CONSTANT] = 1.0 / constant
        codes = slice(first, first + CODE_LENGTH)
        attention.v_proj.weight[codes] = 0.0
        attention.v_proj.weight[codes, TOKEN] = spread * torch.eye(CODE_LENGTH)
    for head, (channels, offset) in enumerate(GATHERED):
        rows = head_rows(model, head)
        query = offset_query(model, offset) if offset else recent_query(model)
        attention.q_proj.weight[rows, CONSTANT] = query * size**0.5 / constant
        gain = (1.0 if offset else RECENT_GAIN) * torch.eye(CODE_LENGTH)
        attention.o_proj.weight[channels, rows.start : rows.start + CODE_LENGTH] = gain


def set_match(model: Llama) -> None:
    """The heads that find what followed the same passage, and copy it."""
    size, attention = model.shape.head_dim, model.layers[MATCH_LAYER].self_attn
    pairs = torch.arange(SLOW_PAIRS.start, SLOW_PAIRS.stop)
    places = torch.cat((pairs, pairs + size // 2))
    codes_read = 1 + len(GATHERED)
    squares = model.embed_tokens.weight.pow(2).sum(1).mean()
    squares += (codes_read - 1) * CODE_LENGTH * CODE_SIZE**2
    spread = (squares / model.shape.hidden_size).sqrt()
    whole = sum(SHARES) * CODE_LENGTH * (CODE_SIZE / spread) ** 2
    sharp = (MATCH * size**0.5 / whole) ** 0.5
    sink = (SINK_SHARE * MATCH * size**0.5) ** 0.5 * spread / CONSTANT_SIZE
    queried, keyed = (TOKEN, *BACK[:2], RECENT), (*BACK, RECENT)
    query, key, value = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
    for key_head, head in enumerate(match_heads(model)):
        first, own = head_rows(model, head).start, head_rows(model, key_head).start
        query[first : first + size] = 0.0
        query[first + SINK_PAIR, CONSTANT] = sink
        key[own : own + size] = 0.0
        key[own + SINK_PAIR, FIRST_POSITION] = sink
        value[own : own + CODE_LENGTH] = 0.0
        value[own : own + CODE_LENGTH, TOKEN] = torch.eye(CODE_LENGTH)
        mixes = [torch.linalg.qr(torch.randn(len(places), CODE_LENGTH)).Q for _ in SHARES]
        for mix, share, channels in zip(mixes, SHARES, keyed):
            key[own + places, channels] = share**0.5 * sharp * mix
        for mix, share, channels in zip(mixes, SHARES, queried):
            query[first + places, channels] = share**0.5 * sharp * mix
        copied = COPY_GAIN / MATCH_HEADS * torch.eye(CODE_LENGTH)
        attention.o_proj.weight[FOUND, first : first + CODE_LENGTH] = copied


@torch.no_grad()
def sharpen_gathering(model: Llama, factor: float) -> None:
    """Scales the queries of layer 0's heads that look 1, 2 and 3 back, so that their attention to
    the one token they look for does not thin out as the context grows."""
    attention = model.layers[0].self_attn
    for head, (_, offset) in enumerate(GATHERED):
        if offset:
            attention.q_proj.weight[head_rows(model, head)] *= factor


@torch.no_grad()
def set_found(model: Llama) -> None:
    """Lets the output head read the embeddings' codes where they are copied to."""
    codes = model.embed_tokens.weight[:, TOKEN] / CODE_SIZE
    model.lm_head.weight[:, FOUND] = READ_SIZE * codes


@torch.no_grad()
def head_start(model: Llama, stream: np.ndarray) -> None:
    """Sets up the circuit and the bigram model in a freshly initialised model."""
    set_embeddings(model, stream)
    set_gathering(model)
    set_match(model)
    set_found(model)


def rates(model: Llama) -> dict[str, Tensor]:
    """By parameter name, every weight's share of the learning rate where that is not one.

    What gathers and holds the codes stays as it is; the match heads' queries and keys are
    trained slowly.
    """
    size, named, shares = model.shape.head_dim, dict(model.named_parameters()), {}

    def share(name: str) -> Tensor:
        return shares.setdefault(name, torch.ones_like(named[name]))

    held = torch.zeros(model.shape.hidden_size, dtype=torch.bool)
    for channels in (CONSTANT, FIRST_POSITION, TOKEN, *BACK, RECENT):
        held[channels] = True
    share("embed_tokens.weight")[:, held] = 0.0
    for layer in range(MATCH_LAYER + 1):
        share(f"layers.{layer}.input_layernorm.weight")[held] = 0.0
    for layer in range(MATCH_LAYER):
        share(f"layers.{layer}.self_attn.o_proj.weight")[held] = 0.0
        share(f"layers.{layer}.mlp.down_proj.weight")[held] = 0.0
    gathering = list(range(len(GATHERED)))
    for layer, heads, keys, rate in (
        (0, gathering, key_heads(model, len(GATHERED)), 0.0),
        (MATCH_LAYER, match_heads(model), MATCH_HEADS, MATCH_RATE),
    ):
        prefix = f"layers.{layer}.self_attn"
        for head in heads:
            share(f"{prefix}.q_proj.weight")[head_rows(model, head)] = rate
        share(f"{prefix}.k_proj.weight")[: keys * size] = rate
        for head in range(keys):
            first = head_rows(model, head).start
            share(f"{prefix}.v_proj.weight")[first : first + CODE_LENGTH] = 0.0
    return shares


@torch.no_grad()
def match_spread(model: Llama, ids: Tensor) -> float:
    """The root mean square of what the match layer reads, averaged over ids."""
    x = model.embed_tokens(ids)
    cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
    for layer in model.layers[:MATCH_LAYER]:
        x, _ = layer(x, cos, sin, None, None)
    return x.pow(2).mean(-1).rsqrt().mean().reciprocal().item()


@torch.no_grad()
def keep_sharp(model: Llama, factor: float) -> None:
    """Scales the match heads' queries and keys by factor.

    While layer 0 learns, what it adds makes the codes a smaller share of what the match layer
    reads after its norm; this makes up for it.
    """
    size, attention = model.shape.head_dim, model.layers[MATCH_LAYER].self_attn
    for head in match_heads(model):
        attention.q_proj.weight[head_rows(model, head)] *= factor
    attention.k_proj.weight[: MATCH_HEADS * size] *= factor
