"""A SentencePiece BPE model as a tokenizer.json, for libraries that read no other: with the same token ids."""

from __future__ import annotations

from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

SPACE = "\u2581"


def converted(model: sentencepiece.SentencePieceProcessor, normalizer, pre_tokenizer, decoder,
              special: list[str]) -> Tokenizer:
    """`special`: unknown, BOS and EOS; BOS goes in front of a text."""
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        if model.is_byte(i) or model.is_control(i) or model.is_unknown(i):
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-model.get_score(i), vocabulary[left], vocabulary[right], left, right))
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[m[3:] for m in merges],
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[1]} $A", special_tokens=[(special[1], tokenizer.token_to_id(special[1]))])
    return tokenizer


def llama2(model: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    return converted(
        model,
        normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), None,
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                           decoders.Strip(" ", 1, 0)]),
        ["<unk>", "<s>", "</s>"])


def write_beside(path: Path) -> None:
    """Writes tokenizer.json into the model's folder."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = llama2(model)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", model.bos_id())])
    path.with_name("tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
