"""Rows T (tokenizer files) of the hostile corpus, and the rows P that need a tokenizer.

The model is the tiny one with 300 embedding rows; its tokenizers are written here.
"""

import itertools
import json

from bad_case import Case, ModelFolder, elements, header_of, llama_config, llama_shapes, with_length
from sentencepiece_file import charsmap, message, piece, sentencepiece

ROWS = 300
LINE = {"id": "a", "prompt": "ab", "max_tokens": 1}
MERGES = [["a", "b"], ["ab", "c"]]
END = {"id": 260, "content": "<|end|>", "special": True, "normalized": False}
SPLIT = {"type": "Split", "behavior": "Isolated"}


def byte_letters():
    """The characters that stand for the 256 bytes in byte-level vocabularies, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + n) for n in range(256 - len(plain))]


def byte_level(model=None, **parts):
    """A byte-level tokenizer.json of all bytes, "ab" 256, "abc" 257; `model` changes its model."""
    vocab = {letter: at for at, letter in enumerate([*byte_letters(), "ab", "abc"])}
    whole = {"added_tokens": [END], "normalizer": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
             "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": vocab, "merges": MERGES, **(model or {})}, **parts}
    return {"tokenizer.json": json.dumps(whole)}


def pattern(regex):
    return byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {**SPLIT, "pattern": {"Regex": regex}}, {"type": "ByteLevel", "use_regex": False}]})


def write(folder, files, lines=(LINE,)):
    model = ModelFolder(folder / "model")
    model.llama(vocab_size=ROWS)
    for name, content in files.items():
        model.write(name, content)
    text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    (folder / "prompts.jsonl").write_bytes(text)


def accepted(row, files, lines=(LINE,), exit=0, **expected):
    return Case(row, lambda folder: write(folder, files, lines), exit, records=len(lines), **expected)


def refused(row, files, *texts):
    return Case(row, lambda folder: write(folder, files), 3, texts)


def model_bytes(row, content, *texts):
    return refused(row, {"tokenizer.model": content}, *texts)


def many_merges(folder):
    """A vocabulary of 245,410 tokens and 490,292 merges; the weights are zeros."""
    letters = byte_letters()[:22]
    words = ["".join(word) for length in (1, 2, 3, 4) for word in itertools.product(letters, repeat=length)]
    merges = [[word[:1], word[1:]] for word in words if len(word) > 1]
    merges += [[word[:-1], word[-1:]] for word in words if len(word) > 2]
    spec = json.loads(byte_level()["tokenizer.json"])
    spec["added_tokens"] = []
    spec["model"].update(vocab={word: at for at, word in enumerate(words)}, merges=merges)
    config = llama_config(vocab_size=1 << 18)
    tensors = {name: ("F16", shape, b"\0" * (2 * elements(shape))) for name, shape in llama_shapes(config).items()}
    model = ModelFolder(folder / "model")
    model.config(config)
    head, data = header_of(tensors)
    model.write("model.safetensors", with_length(json.dumps(head).encode(), data))
    model.write("tokenizer.json", json.dumps(spec))
    (folder / "prompts.jsonl").write_bytes(json.dumps({"prompt": "#$%", "max_tokens": 1}).encode() + b"\n")


def million_letters(folder):
    write(folder, byte_level())
    with open(folder / "prompts.jsonl", "ab") as file:
        file.write(b'{"prompt": "' + b"a" * 8_000_000 + b'"}\n')


def file_cases():
    vocab = {"a": 0, "b": 1, "ab": 2}
    plain = json.loads(byte_level()["tokenizer.json"])["model"]["vocab"]
    wide = {**plain, "xy": 299}
    return [
        accepted("T0-byte-level", byte_level(), output=('"prompt_tokens":1',)),
        accepted("T0-sentencepiece", {"tokenizer.model": sentencepiece(2, True)}),
        refused("T2-only-vocab", {"vocab.json": json.dumps(vocab)}, "E-TOK-FILE", "merges.txt"),
        refused("T2-only-merges", {"merges.txt": "a b\n"}, "E-TOK-FILE", "vocab.json"),
        model_bytes("T3-tiktoken", b"IQ== 0\nIg== 1\n", "E-TOK-TIKTOKEN", "tokenizer.json"),
        model_bytes("T4-empty", b"", "E-TOK-FORMAT"),
        model_bytes("T4-truncated", sentencepiece(2, True)[:-3], "E-TOK-FORMAT"),
        model_bytes("T4-length-2-64", b"\x0a" + b"\xff" * 9 + b"\x01", "E-TOK-FORMAT"),
        model_bytes("T5-charsmap-leaves-its-table", sentencepiece(1, False, message(2, charsmap(768))),
                    "E-TOK-CHARSMAP"),
        model_bytes("T5-charsmap-truncated", sentencepiece(1, False, message(2, charsmap()[:-1])), "E-TOK-CHARSMAP"),
        accepted("T5-charsmap-good", {"tokenizer.model": sentencepiece(1, True, message(2, charsmap()))}),
        model_bytes("T6-million-byte-piece", sentencepiece(1, False, extra=piece("x" * 1_000_000, -9, 1)),
                    "E-TOK-LIMIT", "1000000"),
        model_bytes("T7-empty-piece", sentencepiece(2, False, extra=piece("", 0, 1)), "E-TOK-PIECE", "empty"),
        model_bytes("T7-piece-twice", sentencepiece(2, False, extra=piece("ab", 0, 1)), "E-TOK-PIECE", "again"),
        model_bytes("T7-no-unknown", piece("a", 0, 1), "E-TOK-PIECE", "no unknown"),
        model_bytes("T7-byte-piece", sentencepiece(2, True, extra=piece("<0x-1>", 0, 6)), "E-TOK-PIECE",
                    "<0x00> to <0xFF>"),
        accepted("T8-nul-in-piece", {"tokenizer.model": sentencepiece(2, True, extra=piece("l\0d", -9, 1))}),
        model_bytes("T8-invalid-utf8", sentencepiece(2, False, extra=piece(b"\x8d\x93", 0, 1)), "E-TOK-PIECE",
                    "UTF-8"),
        model_bytes("T8-nan-score", sentencepiece(2, False, extra=piece("x", float("nan"), 1)), "E-TOK-PIECE",
                    "finite"),
        refused("T10-wordpiece", byte_level({"type": "WordPiece"}), "E-TOK-COMPONENT", "model.type", "WordPiece"),
        *[refused(f"T10-{part}", byte_level(**{part: {"type": "Nonsense"}}), "E-TOK-COMPONENT", f"{part}.type",
                  "Nonsense") for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor")],
        refused("T10-inside-a-sequence", byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel"}, {"type": "Nonsense"}]}), "E-TOK-COMPONENT", "pre_tokenizer.pretokenizers[1].type"),
        *[accepted(f"T11-merges-as-{name}", byte_level({"merges": merges}), [{**LINE, "prompt": "abc"}],
                   output=('"prompt_tokens":1',)) for name, merges in (("pairs", MERGES), ("texts", ["a b", "ab c"]))],
        refused("T12-result-is-no-token", byte_level({"merges": ["a c"]}), "E-TOK-MERGE", "model.merges[0]"),
        refused("T12-unknown-token", byte_level({"merges": ["a b", "xx b"]}), "E-TOK-MERGE", "model.merges[1]"),
        refused("T12-three-parts", byte_level({"merges": [["a", "b", "c"]]}), "E-TOK-MERGE", "model.merges[0]"),
        accepted("T13-ignore-merges", byte_level({"merges": [], "ignore_merges": True}),
                 [{**LINE, "prompt": "abc"}], output=('"prompt_tokens":1',)),
        accepted("T13-merges-count", byte_level({"merges": []}), [{**LINE, "prompt": "abc"}],
                 output=('"prompt_tokens":3',)),
        refused("T14-id-twice", byte_level({"vocab": {**plain, "xy": 5}}), "E-TOK-ID"),
        *[refused(f"T14-id-{value}", byte_level({"vocab": {**plain, "xy": value}}), "E-TOK-ID")
          for value in (-1, 1.5, 2**31)],
        accepted("T14-gap", byte_level({"vocab": wide}), output=('"prompt_tokens":1',)),
        refused("T15-id-beyond-the-rows", byte_level({"vocab": {**plain, "xy": ROWS}}), "E-TOK-SIZE",
                "token id 300", "300 embedding rows"),
        accepted("T16-more-rows-than-tokens", byte_level(), stderr=("261 ids, 300 embedding rows",)),
        accepted("T17-files-disagree", {**byte_level(), "added_tokens.json": '{"<|end|>": 261}'},
                 stderr=("has id 261", "260 in the tokenizer")),
        refused("T18-bad-pattern", pattern("ab(c"), "E-TOK-REGEX", "offset 4"),
        accepted("T18-catastrophic-pattern", pattern("(a+)+(a+)+(a+)+$|."),
                 [{**LINE, "prompt": "a" * 3000 + "b"}, {**LINE, "id": "good"}], exit=1,
                 output=('"code":"E-TOK-REGEX"', '"good"')),
        Case("T20-490292-merges", many_merges, 0, records=1, output=('"prompt_tokens":1',), seconds=60),
    ]


def prompt_cases():
    def one(row, prompt, *texts, extra=(), exit=0):
        return accepted(row, byte_level(), [{**LINE, "prompt": prompt}], exit, output=texts, extra=extra)

    return [
        one("P10-empty", "", '"prompt_tokens":1'),
        one("P11-blanks", " " * 50, '"prompt_tokens":50'),
        accepted("P11-blanks-sentencepiece", {"tokenizer.model": sentencepiece(2, True)},
                 [{**LINE, "prompt": " " * 50}]),
        Case("P13-million-tokens", million_letters, 1, output=('"code":"E-IN-CONTEXT"', "8000000")),
        one("P21-special-token", "<|end|>", '"prompt_tokens":1'),
        one("P21-as-text", "<|end|>", '"prompt_tokens":7', extra=("--no-special",)),
        one("P22-nul", "a\0b", '"prompt_tokens":3'),
        accepted("P23-line-separators", byte_level(), ['{"prompt": "\u2028",\r"max_tokens": 1}'.encode(),
                 b'{"prompt":\x0c"a"}'], 1, output=('"prompt_tokens":3', '"code":"E-IN-JSON"', '"index":1')),
    ]


def cases():
    return file_cases() + prompt_cases()
