"""The text of sources.py in token ids, and the tokenizer trained on it.

Run ``python corpus.py --work DIR`` to write, into DIR:

* ``train.txt`` and ``heldout.txt``: the text, one paragraph a line; the last 3 % of
  every source is held out,
* ``tokenizer.model``: a SentencePiece BPE model with byte fallback and split digits,
* ``train.npy`` and ``heldout.npy``: the token ids of both texts.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import sentencepiece
from sources import fetch_packages, read_sources, split_of


def train_tokenizer(text: Path, prefix: Path, vocab_size: int) -> None:
    """Trains a LLaMA-like SentencePiece BPE tokenizer."""
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        split_digits=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=100_000,
        input_sentence_size=60_000,
        shuffle_input_sentence=True,
        num_threads=2,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
    )


def encode_file(tokenizer: sentencepiece.SentencePieceProcessor, path: Path) -> np.ndarray:
    """The token ids of a text file, paragraph by paragraph with newlines between."""
    lines = path.read_text("ascii").splitlines()
    encoded = tokenizer.encode(["\n" + line for line in lines])
    return np.concatenate([np.array(ids[1:], dtype=np.uint16) for ids in encoded])


def main() -> None:
    """Fetches the packages and writes the texts, the tokenizer and the token files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--tokenizer", type=Path, help="use this one instead of training one")
    arguments = parser.parse_args()
    work: Path = arguments.work

    fetch_packages(work / "packages")
    train_lines, heldout_lines = [], []
    for name, paragraphs in read_sources(work / "packages").items():
        train, heldout = split_of(paragraphs)
        train_lines += train
        heldout_lines += heldout
        print(f"{name}: {len(paragraphs)} paragraphs, {sum(map(len, paragraphs))} characters")
    (work / "train.txt").write_text("\n".join(train_lines) + "\n", "ascii")
    (work / "heldout.txt").write_text("\n".join(heldout_lines) + "\n", "ascii")

    if arguments.tokenizer:
        shutil.copyfile(arguments.tokenizer, work / "tokenizer.model")
    else:
        train_tokenizer(work / "train.txt", work / "tokenizer", arguments.vocab_size)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(work / "tokenizer.model"))
    for split in ("train", "heldout"):
        ids = encode_file(tokenizer, work / f"{split}.txt")
        np.save(work / f"{split}.npy", ids)
        print(f"{split}: {len(ids)} tokens")


if __name__ == "__main__":
    main()
