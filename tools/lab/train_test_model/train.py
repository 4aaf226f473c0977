"""Trains one of the test models on a CPU.

The start is that of headstart.py.  The curriculum goes from sequences of 256 tokens to
sequences of 2,048. Each is a mixture of plain English and of things to look up.

Run ``python train.py --work DIR --name mha``.  With ``--minutes`` the run shortens every
stage as needed to end in that time.  DIR/NAME.pt is the checkpoint, DIR/NAME-metrics.jsonl
the log.  ``--resume`` goes on from the checkpoint.

Every worker is a process with one thread.  The workers draw the small batches of a step
from a common counter, so that one slowed down by other programs draws fewer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Callable

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from evaluate import quick_scores
from headstart import keep_sharp, match_spread, rates
from model import SHAPES, Llama
from work import open_sampler, parser_of, probe_of

WARMUP_STEPS = 40
DECAY_FROM = 0.45
FINAL_RATE = 0.03
SAVE_EVERY = 120.0
SHARPEN_EVERY = 10


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum, until a share of the whole run has passed.

    A step takes ``batches`` small batches of ``rows`` sequences of ``length`` tokens.
    """

    until: float
    length: int
    rows: int
    batches: int
    shares: dict[str, float]


def shares(
    repeats: float, facts: float, mixed: float, natural: float, replays: float = 0.0
) -> dict[str, float]:
    """The shares of the generators of synthetic.Sampler."""
    return {
        "random_repeats": repeats,
        "facts_only": facts,
        "mixed": mixed,
        "natural": natural,
        "replays": replays,
    }


CURRICULUM = (
    Stage(0.50, 256, 4, 4, shares(0.03, 0.05, 0.12, 0.80)),
    Stage(0.80, 512, 2, 4, shares(0.02, 0.04, 0.14, 0.60, replays=0.20)),
    Stage(0.91, 1024, 1, 4, shares(0.02, 0.05, 0.20, 0.48, replays=0.25)),
    Stage(1.00, 2048, 1, 2, shares(0.02, 0.05, 0.20, 0.48, replays=0.25)),
)


class Muon:
    """Momentum whose update of a matrix is replaced by the nearest orthogonal matrix.

    The orthogonal matrix is approached by five Newton-Schulz steps; matrices of one shape
    (or its transpose) are done together.
    """

    def __init__(
        self, matrices: list[nn.Parameter], shares: list[Tensor | None], momentum: float = 0.95
    ) -> None:
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        self.shares = dict(zip(matrices, shares))
        for matrix in matrices:
            key = (min(matrix.shape), max(matrix.shape))
            self.groups.setdefault(key, []).append(matrix)
        self.velocity = {key: torch.zeros(len(group), *key) for key, group in self.groups.items()}
        self.momentum = momentum

    @staticmethod
    def orthogonal(x: Tensor) -> Tensor:
        """Newton-Schulz iteration on a batch of wide matrices."""
        x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x.float()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every matrix from its gradient."""
        for key, group in self.groups.items():
            wide = [m.grad if m.shape == key else m.grad.mT for m in group]
            gradient, velocity = torch.stack(wide), self.velocity[key]
            velocity.lerp_(gradient, 1 - self.momentum)
            update = self.orthogonal(gradient.lerp(velocity, self.momentum))
            for matrix, change in zip(group, update):
                change = change if matrix.shape == key else change.mT
                if (share := self.shares[matrix]) is not None:
                    change = change * share
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.sub_(change, alpha=rate * scale)


@dataclass
class Shared:
    """What the workers have in common: the weights, their gradients, and the next step."""

    model: Llama
    gradients: list[list[Tensor]]
    barrier: Barrier
    ticket: Synchronized
    plan: Tensor
    losses: Tensor


def make_loss(model: Llama) -> Callable[[Tensor, Tensor], Tensor]:
    """The weighted loss of predicting every token of a batch but the first."""

    def loss(ids: Tensor, weights: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids[:, :-1])
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten()
        return (each * weight).sum() / weight.sum().clamp(min=1.0)

    return torch.compile(loss, dynamic=False)


def rate_factor(step: int, progress: float) -> float:
    """The learning rate's factor: warm-up, a plateau, and a linear decay."""
    decay = 1.0 - (1.0 - FINAL_RATE) * max(0.0, progress - DECAY_FROM) / (1.0 - DECAY_FROM)
    return min(1.0, (step + 1) / WARMUP_STEPS) * decay


class Worker:
    """One process's part of every step."""

    def __init__(self, rank: int, shared: Shared, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        self.rank, self.shared, self.arguments = rank, shared, arguments
        self.sampler = open_sampler(arguments.work, "train", arguments.seed)
        self.parameters = list(shared.model.parameters())
        for parameter, gradient in zip(self.parameters, shared.gradients[rank]):
            parameter.grad = gradient
        self.loss_of = make_loss(shared.model)
        hidden, others = [], []
        for index, (name, parameter) in enumerate(shared.model.named_parameters()):
            matrix = parameter.dim() == 2 and name.startswith("layers")
            (hidden if matrix else others).append(index)
        workers = arguments.workers
        self.own_hidden, self.own_others = hidden[rank::workers], others[rank::workers]
        slow = rates(shared.model)
        self.shares = [slow.get(name) for name, _ in shared.model.named_parameters()]
        self.muon = Muon(
            [self.parameters[index] for index in self.own_hidden],
            [self.shares[index] for index in self.own_hidden],
        )
        peaks = {
            "embed_tokens.weight": arguments.embedding_rate,
            "lm_head.weight": arguments.head_rate,
        }
        names = [name for name, _ in shared.model.named_parameters()]
        self.adam = torch.optim.AdamW(
            [
                {
                    "params": [self.parameters[index]],
                    "peak": peaks.get(names[index], arguments.norm_rate),
                }
                for index in self.own_others
            ],
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )

    def next_ticket(self) -> int:
        """The number of the next small batch of this step."""
        with self.shared.ticket.get_lock():
            self.shared.ticket.value += 1
            return self.shared.ticket.value - 1

    def step(self) -> bool:
        """Takes part in the planned step; False where the plan is to stop."""
        shared, arguments = self.shared, self.arguments
        shared.barrier.wait()
        number, step, factor = int(shared.plan[0]), int(shared.plan[1]), float(shared.plan[2])
        if number < 0:
            return False
        stage = CURRICULUM[number]
        while (ticket := self.next_ticket()) < stage.batches:
            self.sampler.rng = np.random.default_rng((arguments.seed, step, ticket))
            ids, weights = self.sampler.batch(stage.rows, stage.length + 1, stage.shares)
            loss = self.loss_of(torch.from_numpy(ids), torch.from_numpy(weights))
            loss.backward()
            shared.losses[self.rank] += loss.item() / stage.batches
        shared.barrier.wait()
        self.update(factor)
        shared.barrier.wait()
        for gradient in shared.gradients[self.rank]:
            gradient.zero_()
        return True

    def update(self, factor: float) -> None:
        """Updates this worker's share of the parameters from the gradients of all."""
        others = [rank for rank in range(self.arguments.workers) if rank != self.rank]
        for index in (*self.own_hidden, *self.own_others):
            for rank in others:
                self.parameters[index].grad += self.shared.gradients[rank][index]
            if self.shares[index] is not None:
                self.parameters[index].grad *= self.shares[index]
        self.muon.step(self.arguments.matrix_rate * factor)
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * factor
        self.adam.step()


def follow(rank: int, shared: Shared, arguments: argparse.Namespace) -> None:
    """The life of every worker but the first."""
    worker = Worker(rank, shared, arguments)
    while worker.step():
        pass


def lead(shared: Shared, arguments: argparse.Namespace, start: dict) -> None:
    """The life of the first worker, which also plans the steps and scores the model."""
    worker = Worker(0, shared, arguments)
    work: Path = arguments.work
    started, tokens, step, progress = time.monotonic(), 0, 0, arguments.begin
    if arguments.resume:
        reached = torch.load(work / f"{arguments.name}.pt", weights_only=True)["progress"]
        started -= 60 * reached["minutes"]
        tokens, step, progress = reached["tokens"], reached["step"], reached["progress"]
    scored_at, scored_tokens, running = time.monotonic(), tokens, math.nan
    saved_at = scored_at
    number = next(index for index, stage in enumerate(CURRICULUM) if progress < stage.until)
    probe = probe_of(worker.sampler.stream)
    spread = (reached if arguments.resume else start)["match_spread"]
    log = (work / f"{arguments.name}-metrics.jsonl").open("a" if arguments.resume else "w")

    def save() -> dict[str, float]:
        nonlocal saved_at
        speed = (tokens - scored_tokens) / (time.monotonic() - scored_at)
        record = {
            "length": CURRICULUM[number].length,
            "progress": round(progress, 4),
            "step": step,
            "tokens": tokens,
            "minutes": round((time.monotonic() - started) / 60, 1),
            "tokens_per_second": round(speed),
            "train_loss": round(running, 4),
            "match_spread": spread,
        }
        partial = work / f"{arguments.name}.partial"
        torch.save({"model": shared.model.state_dict(), "progress": record}, partial)
        partial.rename(work / f"{arguments.name}.pt")
        saved_at = time.monotonic()
        return record

    def score() -> None:
        nonlocal scored_at, scored_tokens
        record = save()
        scores = quick_scores(shared.model, work, CURRICULUM[number].length)
        record |= {name: round(value, 4) for name, value in scores.items()}
        print(json.dumps(record), flush=True)
        log.write(json.dumps(record) + "\n")
        log.flush()
        scored_at, scored_tokens = time.monotonic(), tokens

    while progress < 1.0:
        if progress >= CURRICULUM[number].until:
            score()
            number += 1
        shared.plan[:] = torch.tensor([number, step, rate_factor(step, progress)])
        shared.ticket.value = 0
        shared.losses.zero_()
        worker.step()
        loss = shared.losses.sum().item()
        running = loss if math.isnan(running) else 0.98 * running + 0.02 * loss
        stage = CURRICULUM[number]
        if step % SHARPEN_EVERY == 0:
            wider = match_spread(shared.model, probe)
            keep_sharp(shared.model, wider / spread)
            spread = wider
        step += 1
        tokens += stage.batches * stage.rows * stage.length
        done = tokens / arguments.tokens
        if arguments.minutes:
            done = max(done, (time.monotonic() - started) / 60 / arguments.minutes)
        progress = arguments.begin + (1.0 - arguments.begin) * done
        if time.monotonic() - scored_at > 60 * arguments.score_every:
            score()
        elif time.monotonic() - saved_at > SAVE_EVERY:
            save()
    score()
    shared.plan[0] = -1
    worker.step()


def train(arguments: argparse.Namespace) -> None:
    """Starts the workers and leads them through the curriculum."""
    torch.manual_seed(arguments.seed)
    model = Llama(SHAPES[arguments.name])
    start = torch.load(arguments.work / f"{arguments.name}-start.pt", weights_only=True)
    model.load_state_dict(start["model"])
    if arguments.resume:
        saved = torch.load(arguments.work / f"{arguments.name}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
    model.share_memory()
    context = mp.get_context("spawn")
    shared = Shared(
        model=model,
        gradients=[
            [torch.zeros_like(parameter).share_memory_() for parameter in model.parameters()]
            for _ in range(arguments.workers)
        ],
        barrier=context.Barrier(arguments.workers),
        ticket=context.Value("i", 0),
        plan=torch.zeros(3, dtype=torch.float64).share_memory_(),
        losses=torch.zeros(arguments.workers).share_memory_(),
    )
    processes = [
        context.Process(target=follow, args=(rank, shared, arguments), daemon=True)
        for rank in range(1, arguments.workers)
    ]
    for process in processes:
        process.start()
    lead(shared, arguments, start)
    for process in processes:
        process.join()


def main() -> None:
    """Parses the command line and trains."""
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=16_000_000)
    parser.add_argument("--minutes", type=float, help="shorten the run to this time")
    parser.add_argument("--begin", type=float, default=0.0, help="where in the curriculum")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--embedding-rate", type=float, default=0.005)
    parser.add_argument("--head-rate", type=float, default=0.003)
    parser.add_argument("--norm-rate", type=float, default=0.001)
    parser.add_argument("--score-every", type=float, default=5.0, help="minutes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
