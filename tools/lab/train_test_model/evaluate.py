"""Dense scores of a trained model, and the same under a plain local window.

Three things are measured, all on held-out text:

* the perplexity,
* the repetition score: a passage, about 1,500 tokens of other text, and the passage's
  first tokens again; the share of the next tokens that greedy decoding repeats right,
* the needle accuracy: the share of questions about one of four facts hidden in text that
  greedy decoding answers with every digit right.

Under a window, the prompt but its last token is read densely and every later step sees
only the newest share of the positions (and, where sinks is not zero, the first few).

Run ``python evaluate.py --work DIR --name mha`` for the scores of a checkpoint.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model import Llama
from synthetic import FIRST_TEXT_PIECE, Fact, Sampler, random_fact
from work import open_model, open_sampler, parser_of

CUE = 16
REPEATED = 32
NEEDLES = 4
BATCH = 10


@dataclass(frozen=True)
class Window:
    """What decoding may see: the newest share of the positions and the first sinks."""

    share: float = 1.0
    sinks: int = 0

    def mask(self, keys: int) -> Tensor | None:
        """The visible keys of a step, or None where all are."""
        if self.share >= 1.0:
            return None
        visible = torch.zeros(1, 1, 1, keys, dtype=torch.bool)
        visible[..., keys - math.ceil(self.share * keys) :] = True
        visible[..., : self.sinks] = True
        return visible


DISTANCES = (500, 1000, 1500, 1900)
LENGTHS = (512, 1024, 1536, 2000)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.95)
DENSE = Window()
WINDOWS = {
    "dense": DENSE,
    "window_20": Window(0.2),
    "window_20_with_16_first": Window(0.2, 16),
}


@torch.inference_mode()
def decode(model: Llama, prompts: Tensor, steps: int, windows: list[Window]) -> list[Tensor]:
    """The greedy continuations of equally long prompts, [batch, steps], one per window."""
    _, prompt_caches = model.step(prompts[:, :-1], None)
    continuations = []
    for window in windows:
        caches, token, chosen = prompt_caches, prompts[:, -1:], []
        for _ in range(steps):
            keys = caches[0][0].shape[2] + 1
            logits, caches = model.step(token, caches, window.mask(keys))
            token = logits.argmax(-1, keepdim=True)
            chosen.append(token)
        continuations.append(torch.cat(chosen, 1))
    return continuations


@torch.inference_mode()
def perplexity(model: Llama, stream: np.ndarray, bos: int, length: int, windows: int) -> float:
    """Perplexity per token over windows evenly spread over the stream."""
    total, count = 0.0, 0
    for start in np.linspace(0, len(stream) - length, windows).astype(int):
        ids = torch.from_numpy(stream[start : start + length].astype(np.int64))
        inputs = torch.cat((torch.tensor([bos]), ids[:-1]))
        total += F.cross_entropy(model(inputs[None])[0].float(), ids, reduction="sum").item()
        count += length
    return math.exp(total / count)


def repetition_prompt(sampler: Sampler, distance: int) -> tuple[list[int], list[int]]:
    """A prompt that begins to repeat its first passage, and the passage's continuation."""
    passage_start = sampler.text_start(CUE + REPEATED)
    passage = sampler.stream[passage_start : passage_start + CUE + REPEATED].tolist()
    gap = distance - len(passage)
    filler_start = sampler.text_start(gap)
    filler = sampler.stream[filler_start : filler_start + gap].tolist()
    return [sampler.bos, *passage, *filler, *passage[:CUE]], passage[CUE:]


def needle_prompt(sampler: Sampler, length: int, depth: float) -> tuple[list[int], list[int]]:
    """Text with NEEDLES facts, a question on the one at depth, and the value asked for."""
    tokenizer, rng = sampler.tokenizer, sampler.rng
    facts: list[Fact] = []
    while len(facts) < NEEDLES:
        fact = random_fact(rng)
        if len(fact.value) == 5 and fact.lead() not in [other.lead() for other in facts]:
            facts.append(fact)
    asked = facts[0]
    ending = sampler.line(asked.prompt())
    sentences = [tokenizer.encode(fact.statement) for fact in facts]
    room = length - 1 - len(ending) - sum(map(len, sentences))
    starts = np.empty(0, dtype=np.int64)
    while len(starts) == 0:
        start = sampler.text_start(room)
        starts = sampler.sentence_starts - start
        starts = starts[(starts > 0) & (starts < room)]
    filler = sampler.stream[start : start + room].tolist()
    places = [int(starts[np.abs(starts - depth * room).argmin()])]
    places += rng.choice(starts, NEEDLES - 1).tolist()
    for place, sentence in sorted(zip(places, sentences), reverse=True):
        filler[place:place] = sentence
    return [sampler.bos, *filler, *ending], tokenizer.encode(asked.value)


def matched_shares(
    model: Llama, cases: list[tuple[list[int], list[int]]], windows: list[Window]
) -> Tensor:
    """The share of its expected tokens that greedy decoding gives, [window, case]."""
    batches = []
    for first in range(0, len(cases), BATCH):
        prompts, expected = zip(*cases[first : first + BATCH])
        wanted = torch.tensor(expected)
        given = decode(model, torch.tensor(prompts), wanted.shape[1], windows)
        batches.append(torch.stack([(each == wanted).float().mean(1) for each in given]))
    return torch.cat(batches, 1)


def repetition(
    model: Llama, sampler: Sampler, distance: int, count: int, windows: list[Window]
) -> list[float]:
    """The mean share of a passage repeated right, for every window."""
    cases = [repetition_prompt(sampler, distance) for _ in range(count)]
    return matched_shares(model, cases, windows).mean(1).tolist()


def needle(
    model: Llama, sampler: Sampler, length: int, depth: float, count: int, windows: list[Window]
) -> list[float]:
    """The share of needles found at a depth of a prompt of a length, for every window."""
    cases = [needle_prompt(sampler, length, depth) for _ in range(count)]
    return (matched_shares(model, cases, windows) == 1.0).float().mean(1).tolist()


@torch.inference_mode()
def copy_loss(model: Llama, sampler: Sampler, period: int) -> float:
    """The loss on the second copy of random strings; about 7.6 where nothing is copied."""
    shape = (BATCH, period)
    strings = sampler.rng.integers(FIRST_TEXT_PIECE, sampler.tokenizer.vocab_size(), shape)
    ids = torch.from_numpy(np.concatenate((strings, strings), 1))
    logits = model(ids[:, :-1])[:, period:].float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, period + 1 :].flatten()).item()


def quick_scores(model: Llama, work: Path, trained_length: int) -> dict[str, float]:
    """A few cheap scores at about the length that is being trained."""
    sampler = open_sampler(work, "heldout", seed=1)
    length = max(256, trained_length)
    distance = min(1500, length - 2 * CUE - REPEATED)
    return {
        "heldout_perplexity": perplexity(
            model, sampler.stream, sampler.bos, length, 8192 // length
        ),
        "copy_loss_32": copy_loss(model, sampler, 32),
        "repetition_distance": distance,
        "repetition": repetition(model, sampler, distance, BATCH, [DENSE])[0],
        "needle_length": length - 16,
        "needle_depth_0.3": needle(model, sampler, length - 16, 0.3, BATCH, [DENSE])[0],
    }


def full_scores(model: Llama, work: Path, count: int) -> dict[str, object]:
    """The scores of the model card, each dense and under the windows."""
    sampler = open_sampler(work, "heldout", seed=2)
    scores: dict[str, object] = {
        "heldout_perplexity_1024": perplexity(model, sampler.stream, sampler.bos, 1024, 64),
        "heldout_perplexity_2048": perplexity(model, sampler.stream, sampler.bos, 2048, 32),
        "cases_per_score": count,
    }
    windows = list(WINDOWS.values())
    rows: list[dict] = [{"window": asdict(window)} for window in windows]
    sampler = open_sampler(work, "heldout", seed=3)
    for distance in DISTANCES:
        for row, score in zip(rows, repetition(model, sampler, distance, count, windows)):
            row[f"repetition_{distance}"] = score
    for length in LENGTHS:
        for row in rows:
            row[f"needle_{length}"] = {}
        for depth in DEPTHS:
            for row, score in zip(rows, needle(model, sampler, length, depth, count, windows)):
                row[f"needle_{length}"][f"{depth:.2f}"] = score
    return scores | dict(zip(WINDOWS, rows))


def load_checkpoint(work: Path, name: str) -> Llama:
    """The newest checkpoint of a model, its weights rounded to BF16 as they ship."""
    model, saved = open_model(work, name)
    model.load_state_dict({key: value.bfloat16().float() for key, value in saved["model"].items()})
    return model.eval()


def main() -> None:
    """Writes DIR/NAME-scores.json and prints it."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_checkpoint(arguments.work, arguments.name)
    scores = full_scores(model, arguments.work, arguments.count)
    text = json.dumps(scores, indent=2)
    (arguments.work / f"{arguments.name}-scores.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
