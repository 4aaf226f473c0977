"""The work folder: what the scripts leave there for each other, and how they are told of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from torch import Tensor

from model import SHAPES, Llama
from synthetic import Sampler


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Options that name the folder and the model in it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--name", choices=sorted(SHAPES), required=True)
    return parser


def open_sampler(work: Path, split: str, seed: int) -> Sampler:
    """A sampler over a split of the prepared corpus."""
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(work / "tokenizer.model"))
    return Sampler(tokenizer, np.load(work / f"{split}.npy"), np.random.default_rng(seed))


def probe_of(stream: np.ndarray) -> Tensor:
    """Ids for headstart.match_spread."""
    return torch.from_numpy(stream[: 8 * 128].astype(np.int64).reshape(8, 128))


def open_model(work: Path, name: str) -> tuple[Llama, dict]:
    """The newest checkpoint of a model, and all that it holds."""
    model = Llama(SHAPES[name])
    saved = torch.load(work / f"{name}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    return model, saved


def save_start(work: Path, name: str, model: Llama, spread: float) -> None:
    """Writes what train.py begins with."""
    start = {"model": model.state_dict(), "match_spread": spread}
    torch.save(start, work / f"{name}-start.pt")
