"""Writes the tokenizer.json of a SentencePiece BPE model beside it, for libraries that read no other.

Run ``python tokenizer_json.py FOLDER/tokenizer.model ...``.  Texts get the ids that SentencePiece
gives them, with BOS in front.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import sentencepiece

SPACE = "\u2581"


def merges_of(pieces: sentencepiece.SentencePieceProcessor, vocabulary: dict[str, int]) -> list[list[str]]:
    """Every way to make a piece of two others, those of the best pieces first."""
    found = []
    for piece, index in vocabulary.items():
        if pieces.is_control(index) or pieces.is_unknown(index) or pieces.is_byte(index):
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-pieces.get_score(index), index, vocabulary[left], vocabulary[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]


def tokenizer_json(model: Path) -> dict[str, object]:
    """The file's content."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocabulary = {pieces.id_to_piece(index): index for index in range(pieces.get_piece_size())}
    special = [piece for piece, index in vocabulary.items()
               if pieces.is_control(index) or pieces.is_unknown(index)]
    bos = pieces.id_to_piece(pieces.bos_id())
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for token in special
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, sequence],
            "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, sequence,
                     {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [pieces.bos_id()], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces.id_to_piece(pieces.unk_id()),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges_of(pieces, vocabulary),
        },
    }


def write_beside(model: Path) -> None:
    """Writes tokenizer.json into the model's folder."""
    text = json.dumps(tokenizer_json(model), ensure_ascii=False)
    model.with_name("tokenizer.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Writes one file for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    for model in parser.parse_args().models:
        write_beside(model)


if __name__ == "__main__":
    main()
