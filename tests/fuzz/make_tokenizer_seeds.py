#!/usr/bin/env python3
"""Makes seed inputs and dictionaries for the fuzz targets of tokenizer files.

    make_tokenizer_seeds.py FOLDER
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bad"))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from make_seeds import Seeds  # noqa: E402
from sentencepiece_file import PLAIN, charsmap, message, piece, sentencepiece  # noqa: E402

VOCAB = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u2581": 4, "\u2581a": 5, "<unk>": 6, "1": 7, "<0x0A>": 8}
MODEL = {"type": "BPE", "vocab": VOCAB, "merges": ["a b", ["\u2581", "a"]], "unk_token": "<unk>",
         "fuse_unk": True, "byte_fallback": True, "ignore_merges": True, "dropout": None}
PATTERNS = [{"String": " "}, {"Regex": r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+"},
            {"Regex": r"(a+)+$|\w|\d|\S"}]
NORMALIZERS = [None, {"type": "NFC"}, {"type": "NFKD"}, {"type": "Prepend", "prepend": "\u2581"},
               {"type": "Strip"}, {"type": "Sequence", "normalizers": [
                   {"type": "Replace", "pattern": PATTERNS[0], "content": "\u2581"}, {"type": "NFKC"}]}]
PRE_TOKENIZERS = [None, {"type": "ByteLevel", "add_prefix_space": True},
                  {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
                  {"type": "Digits", "individual_digits": True}, {"type": "WhitespaceSplit"}]
PRE_TOKENIZERS += [{"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": behavior == "Removed"},
    {"type": "ByteLevel", "use_regex": False}]}
    for pattern in PATTERNS for behavior in ("Isolated", "Removed", "MergedWithNext", "Contiguous")]
DECODERS = [None, {"type": "ByteLevel"}, {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
            {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": PATTERNS[0], "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 2}]}]
POST = [None, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"x": {"id": "x", "ids": [9], "tokens": ["x"]}}}]}]
ADDED = [{"id": 9, "content": "<s>", "special": True, "lstrip": True, "rstrip": True, "single_word": True,
          "normalized": False}, {"id": 10, "content": "  ", "normalized": True}]


def main():
    folder = pathlib.Path(sys.argv[1])
    seeds = Seeds(folder)
    for i in range(max(len(NORMALIZERS), len(PRE_TOKENIZERS), len(DECODERS))):
        document = {"added_tokens": ADDED, "normalizer": NORMALIZERS[i % len(NORMALIZERS)],
                    "pre_tokenizer": PRE_TOKENIZERS[i % len(PRE_TOKENIZERS)], "post_processor": POST[i % 2],
                    "decoder": DECODERS[i % len(DECODERS)], "model": MODEL}
        content = json.dumps(document, separators=(",", ":")).encode()
        seeds.add("fuzz_tokenizer_json", b"\x00" + content)
        seeds.add("fuzz_tokenizer_json", content)
    for kind in (1, 2):
        for fallback in (False, True):
            seeds.add("fuzz_sentencepiece", sentencepiece(kind, fallback))
        seeds.add("fuzz_sentencepiece", sentencepiece(kind, False, message(2, charsmap())))
        seeds.add("fuzz_sentencepiece", sentencepiece(
            kind, False, PLAIN, piece("wor", 0, 4) + piece("ld", -3, 5) + piece("l\0d", -4, 1)))
    vocabulary = {word: at for at, word in enumerate(["H", "e", "l", "o", "He", "ll", "\u0120", "<|endoftext|>", "<s>"])}
    seeds.add("fuzz_vocabulary", json.dumps(vocabulary).encode() + b"\0#version: 0.2\nH e\nl l\n")
    tokenizer_config = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "legacy": False, "bos_token": "<s>",
                        "eos_token": ADDED[0], "additional_special_tokens": ["<x>"],
                        "added_tokens_decoder": {"9": {"content": "<s>", "special": True}}}
    seeds.add("fuzz_sidecar", json.dumps(tokenizer_config).encode() + b"\0" + json.dumps({"pad_token": "<p>"}).encode() +
              b"\0" + json.dumps({"<y>": 11}).encode())
    for target, names in (("fuzz_vocabulary", list(vocabulary)), ("fuzz_sidecar", list(tokenizer_config) + list(ADDED[0]))):
        (folder / f"{target}.dict").write_text("".join(f'"{word}"\n' for word in names if word.isascii()))
    words = sorted({word for text in (MODEL, NORMALIZERS, PRE_TOKENIZERS, DECODERS, POST, ADDED)
                    for word in json.dumps(text).replace("\\", " ").split('"') if word.isidentifier()})
    (folder / "fuzz_tokenizer_json.dict").write_text("".join(f'"{word}"\n' for word in words))


if __name__ == "__main__":
    main()
