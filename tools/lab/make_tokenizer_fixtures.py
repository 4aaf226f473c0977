#!/usr/bin/env python3
"""Writes what the reference tokenizers make of many texts, for the tests of models/tokenizer.

  make_tokenizer_fixtures.py small --text FILE --out tests/fixtures/tokenizer
      Trains small tokenizers of every supported form on a public-domain text and writes them, each
      with a cases.jsonl of texts, ids and decoded texts. This is what is committed.

  make_tokenizer_fixtures.py expected --data DIR --out DIR [--strings 20000]
      The same cases for real tokenizers (DIR/tokenizers/llama2, neox, opt, o200k) on every line of
      DIR/text/*.txt and on random Unicode strings, and for the committed tokenizers on the random
      strings. tokenizer_large_reference_check reads the result (tests/fixtures/tokenizer/README.md).

Needs PyPI's tokenizers and sentencepiece (the fixtures were made with 0.23.3 and 0.2.3);
`expected` writes llama2-special too where transformers 4.x is installed.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "train_test_model"))

from tokenizer_json import SPACE, converted, llama2  # noqa: E402

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (  # gpt-oss
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORT_FORMS}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORT_FORMS}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SENTENCES = [
    "Ein Gruß aus München: übermorgen fährt der Zug um 8:45 Uhr.",
    "Le garçon a mangé une crêpe près de la forêt, n'est-ce pas ?",
    "El niño corrió 1.234,5 metros; ¡qué rápido!",
    "Сегодня мы читаем книгу о звёздах и планетах.",
    "今天天气很好，我们去公园散步吧。",
    "電車は午前九時三十分に出発します。カタカナとひらがな。",
    "오늘은 날씨가 맑고 바람이 시원합니다.",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "สวัสดีชาวโลก วันนี้อากาศดี",
    "def merge(left, right):\n    return [x for x in left if x not in right]\n",
    "int main(void) {\n\tfor (int i = 0; i < 10; ++i) { printf(\"%d\\n\", i); }\n}\n",
    "I'm sure they'll say we've done what you'd expected; it's HE'S and I'LL.",
    "Prices: $12.50, €7,99 and £3; 1000000 items, 3/4 of them (75%).",
    "Emoji: 😀👍🏽 👩‍👩‍👧‍👦 🇩🇪 and ☃️ plus 𝒳𝒴𝒵 and ﬁ ligatures, ①②③.",
]

EDGES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "a ", "  a  b   c    ",
    "\u00a0", "\u2003x", "\u3000", "\u180e", "a\u180eb", "\u0085", "x\u0085\u2028y", "\ufeffbom",
    "\u0000", "a\u0000b", "\u2581", "\u2581\u2581x \u2581", "e\u0301", "\u00e9", "\u1e9b\u0323",
    "\u212b", "\ufb01", "\uac00\u11a8", "\u1100\u1161\u11a8", "q\u0307\u0323", "q\u0323\u0307",
    "'s 'S 't 'RE 've 'M 'll 'D '\u017f", "don't DON'T", "1 12 123 1234 12345", "\u0661\u0662\u0663\u0664",
    "\u00bd\u2167\u2460", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U00031350\U0002ebf0", "\U00010d40",
    "\u2010\u2011", "!!!???...", " !!!", "a\n\n\nb", "a \n \n b", "a\r\n\r\nb", "\t\tx", " \t x",
    "\ufffd", "\U0010ffff", "\ue000", "a" * 300, "ab" * 200, " " * 70, "\n" * 40, "=" * 80,
    "caf\u00e9 na\u00efve", "<0x0A>", "<0xE2><0x96>", "<unk>", "<s>", "</s>", "<pad>x",
    "\u0e01\u0e33", "\u1b06", "\u0344", "\u0958", "\u2126",
]


def random_strings(count, seed):
    """Valid Unicode of all kinds: scripts, planes, marks, white space, mixtures."""
    rng = random.Random(seed)
    blocks = [
        (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
        (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF),
        (0x1680, 0x180F), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF),
        (0x2E80, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFFFD),
        (0x10000, 0x107FF), (0x10A00, 0x12FFF), (0x1D000, 0x1D7FF), (0x1E000, 0x1FAFF),
        (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0x0, 0x1F), (0x0, 0x10FFFF),
    ]
    white = " \n\t\r\u00a0\u3000\u2003\u2028\u0085\u200b\u180e"
    pieces = ["'s", "'LL", "don't", "http://a.b/c?d=1", "    ", "\n\n", "1234567", "3.14",
              "\u2581", "e\u0301\u0323", "\U0001f469\u200d\U0001f4bb", "\u00df", "Straße", " the", "ing "]

    def point():
        low, high = rng.choice(blocks)
        value = rng.randint(low, high)
        return "x" if 0xD800 <= value < 0xE000 else chr(value)

    strings = []
    for _ in range(count):
        kind = rng.randrange(5)
        length = rng.randint(1, 60 if kind else 12)
        if kind == 0:
            text = "".join(point() for _ in range(length))
        elif kind == 1:
            low, high = rng.choice(blocks)
            values = [rng.randint(low, high) for _ in range(length)]
            text = "".join(" " if rng.random() < 0.15 or 0xD800 <= v < 0xE000 else chr(v) for v in values)
        elif kind == 2:
            text = "".join(rng.choice(white) if rng.random() < 0.3 else point() for _ in range(length))
        elif kind == 3:
            text = "".join(rng.choice(pieces) if rng.random() < 0.4 else point() for _ in range(length))
        else:
            words = rng.choice(SENTENCES).split(" ")
            rng.shuffle(words)
            text = rng.choice([" ", "  ", "\n"]).join(words[:length])
        strings.append(text)
    return strings


class HfReference:
    """A tokenizers.Tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text, add_special, parse_special):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def show(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class SentencePieceReference:
    """A sentencepiece model; special tokens are not in its texts."""

    def __init__(self, path):
        self.model = sentencepiece.SentencePieceProcessor(model_file=path)
        self.size = self.model.get_piece_size()

    def encode(self, text, add_special, parse_special):
        assert not parse_special
        ids = self.model.encode(text)
        return [self.model.bos_id()] + ids if add_special else ids

    def decode(self, ids):
        return self.model.decode(
            [i for i in ids if not self.model.is_control(i) and not self.model.is_unknown(i)])

    def show(self, ids):
        return None


class SlowLlamaReference:
    """transformers' Python LLaMA tokenizer (legacy), which cuts special tokens out first."""

    def __init__(self, path):
        from transformers import LlamaTokenizer
        self.tokenizer = LlamaTokenizer(path, legacy=True)
        self.size = self.tokenizer.vocab_size

    def encode(self, text, add_special, parse_special):
        return self.tokenizer.encode(text, add_special_tokens=add_special)

    def decode(self, ids):
        return None

    def show(self, ids):
        return None


def write_cases(path, reference, texts, random_id_lists, seed=7, variants=((False, True),)):
    """One JSON object per line: text, ids and flags; decoded only where it is not the text."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as out:
        def put(case):
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")

        for text in texts:
            for add_special, parse_special in variants:
                ids = reference.encode(text, add_special, parse_special)
                case = {"text": text, "ids": ids}
                if add_special:
                    case["add_special"] = True
                if not parse_special:
                    case["parse_special"] = False
                decoded = reference.decode(ids)
                if decoded is None:
                    case["encode_only"] = True
                elif decoded != text:
                    case["decoded"] = decoded
                put(case)
        for _ in range(random_id_lists):
            ids = [rng.randrange(reference.size) for _ in range(rng.randint(1, 12))]
            case = {"ids": ids, "decoded": reference.decode(ids)}
            shown = reference.show(ids)
            if shown is not None and shown != case["decoded"]:
                case["shown"] = shown
            put(case)


# --- the small tokenizers ---------------------------------------------------------------------


def save_json(tokenizer, folder, change=None):
    """Writes tokenizer.json, `change`d first, and returns the tokenizer that it then is."""
    os.makedirs(folder, exist_ok=True)
    document = json.loads(tokenizer.to_str())
    if change is not None:
        change(document)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(document, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    return Tokenizer.from_file(path)


def train_byte_level(corpus, size, pre_tokenizer, special, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_llama3(corpus, folder):
    tokenizer = train_byte_level(corpus, 700, split_then_bytes(LLAMA3), [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])

    def change(document):
        model = document["model"]
        model["ignore_merges"] = True
        # The last merges go, their tokens stay: reachable only as whole pieces.
        model["merges"] = model["merges"][:-40]

    return HfReference(save_json(tokenizer, folder, change))


def make_qwen2(corpus, folder):
    tokenizer = train_byte_level(corpus, 700, split_then_bytes(QWEN2), [], normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])

    def change(document):  # merges in the older form
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]

    return HfReference(save_json(tokenizer, folder, change))


def make_o200k(corpus, folder):
    tokenizer = train_byte_level(corpus, 700, split_then_bytes(O200K), [])
    tokenizer.add_special_tokens(["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|message|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)

    def change(document):
        document["model"]["ignore_merges"] = True

    return HfReference(save_json(tokenizer, folder, change))


def make_neox(corpus, folder):
    tokenizer = train_byte_level(corpus, 600, pre_tokenizers.ByteLevel(add_prefix_space=False),
                                 ["<|endoftext|>", "<|padding|>"], normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (8, 4, 3, 2)])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("whole", single_word=True, normalized=False),
        AddedToken("e\u0301t\u00e9", normalized=True)])
    return HfReference(save_json(tokenizer, folder))


def make_falcon(corpus, folder):
    tokenizer = train_byte_level(corpus, 600, pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")]), [">>TITLE<<", "<|endoftext|>"])
    return HfReference(save_json(tokenizer, folder))


def make_gpt2(corpus, folder):
    """vocab.json, merges.txt and the files beside them, as OPT ships them."""
    tokenizer = train_byte_level(corpus, 600, pre_tokenizers.ByteLevel(add_prefix_space=False),
                                 ["<s>", "<pad>", "</s>", "<unk>"])
    os.makedirs(folder, exist_ok=True)
    tokenizer.model.save(folder)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        token = {"content": "</s>", "lstrip": False, "normalized": True, "rstrip": False,
                 "single_word": False, "__type": "AddedToken"}
        json.dump({"add_bos_token": True, "add_prefix_space": False, "bos_token": token,
                   "eos_token": token, "unk_token": token,
                   "pad_token": dict(token, content="<pad>"), "tokenizer_class": "GPT2Tokenizer"}, out)
        out.write("\n")
    rebuilt = gpt2_reference(folder)
    rebuilt.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", rebuilt.token_to_id("</s>"))])
    return HfReference(rebuilt)


def gpt2_reference(folder):
    tokenizer = Tokenizer(models.BPE.from_file(os.path.join(folder, "vocab.json"),
                                               os.path.join(folder, "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", normalized=False), AddedToken("<pad>", normalized=False)])
    return tokenizer


def train_sentencepiece(corpus, folder, **options):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        lines = [line for text in corpus for line in text.split("\n") if line.strip()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=os.path.join(temporary, "m"),
            minloglevel=2, num_threads=1, **options)
        path = os.path.join(folder, "tokenizer.model")
        shutil.copy(os.path.join(temporary, "m.model"), path)
    return SentencePieceReference(path)


LLAMA_OPTIONS = dict(
    model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
    remove_extra_whitespaces=False, split_digits=True, character_coverage=0.98,
    allow_whitespace_only_pieces=True)


def make_llama2_json(reference, folder):
    return HfReference(save_json(llama2(reference.model), folder))


def make_mistral_json(reference, folder):
    return HfReference(save_json(converted(
        reference.model, None, pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False),
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                           decoders.Strip(" ", 1, 0)]),
        ["<unk>", "<s>", "</s>"]), folder))


def make_metaspace_json(reference, folder):
    return HfReference(save_json(converted(
        reference.model, None, pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True),
        decoders.Metaspace(SPACE, prepend_scheme="always", split=True), ["<unk>", "<s>", "</s>"]), folder))


def make_gemma_json(reference, folder):
    return HfReference(save_json(converted(
        reference.model, normalizers.Replace(" ", SPACE),
        pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]),
        ["<unk>", "<bos>", "<eos>"]), folder))


def make_small(arguments):
    with open(arguments.text, encoding="utf-8") as source:
        text = source.read()
    lines = text.split("\n")
    corpus = [text[:200_000]] + SENTENCES * 20
    byte_texts = EDGES + SENTENCES + [line for line in lines[2000:2060] if line]
    byte_texts += ["\n".join(lines[3000:3010])] + random_strings(120, seed=11)
    special_texts = [
        "<|begin_of_text|>Hi<|eot_id|> there", "<|im_start|>user\nHi<|im_end|>\n", "a<|endoftext|>b",
        "</s>", "x</s>y </s> z", "<s>a</s>", " <left> x <right> y", "a<left>", "<right>  <left>",
        "whole a whole,whole wholes awhole", "\u00e9t\u00e9 e\u0301te\u0301", "a  b   c     d         e",
        "<unk>a<unk> b", "<bos>x<eos>", "<s> x", " <s>x", "<pad> <pad>"]
    both = ((True, True), (False, False))

    def put(name, reference, texts=None, variants=((False, True),), lists=60):
        path = os.path.join(arguments.out, name, "cases.jsonl")
        write_cases(path, reference, texts if texts is not None else byte_texts, lists, variants=variants)
        if texts is None:
            more = path + ".more"
            write_cases(more, reference, special_texts + EDGES[:12], 0, variants=both)
            with open(path, "a", encoding="utf-8") as out, open(more, encoding="utf-8") as extra:
                out.write(extra.read())
            os.remove(more)

    def folder(name):
        return os.path.join(arguments.out, name)

    put("llama3", make_llama3(corpus, folder("llama3")))
    put("qwen2", make_qwen2(corpus, folder("qwen2")))
    put("o200k", make_o200k(corpus, folder("o200k")))
    put("neox", make_neox(corpus, folder("neox")))
    put("falcon", make_falcon(corpus, folder("falcon")))
    put("gpt2", make_gpt2(corpus, folder("gpt2")))
    plain = ((False, False),)
    llama = train_sentencepiece(corpus, folder("sp-bpe"), vocab_size=900, **LLAMA_OPTIONS)
    put("sp-bpe", llama, byte_texts, plain)
    put("llama2-json", make_llama2_json(llama, folder("llama2-json")))
    put("mistral-json", make_mistral_json(llama, folder("mistral-json")))
    put("metaspace-json", make_metaspace_json(llama, folder("metaspace-json")))
    gemma = train_sentencepiece(
        corpus, folder("sp-gemma"), vocab_size=900, add_dummy_prefix=False, bos_piece="<bos>", eos_piece="<eos>",
        user_defined_symbols=["<start_of_turn>", "\n", "\n\n", SPACE * 2, SPACE * 3, SPACE * 4, "<b>"],
        **LLAMA_OPTIONS)
    put("sp-gemma", gemma, byte_texts + ["<start_of_turn>x <b>y</b>\n\n\nz"], plain)
    put("gemma-json", make_gemma_json(gemma, folder("gemma-json")))
    put("sp-unigram", train_sentencepiece(corpus, folder("sp-unigram"), vocab_size=500, model_type="unigram"),
        byte_texts, plain)
    put("sp-bpe-nfkc", train_sentencepiece(corpus, folder("sp-bpe-nfkc"), vocab_size=500, model_type="bpe",
                                           normalization_rule_name="nfkc"), byte_texts, plain)
    put("sp-bpe-suffix", train_sentencepiece(
        corpus, folder("sp-bpe-suffix"), vocab_size=450, model_type="bpe", normalization_rule_name="identity",
        treat_whitespace_as_suffix=True, character_coverage=0.98), byte_texts, plain)


def make_expected(arguments):
    texts = []
    folder = os.path.join(arguments.data, "text")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as source:
            content = source.read()
        lines = content.split("\n")
        texts += lines
        # Line breaks inside a text, too.
        texts += ["\n".join(lines[i:i + 40]) for i in range(0, len(lines), 40)]
    strings = EDGES + SENTENCES + random_strings(arguments.strings, seed=1)
    os.makedirs(arguments.out, exist_ok=True)
    source = os.path.join(arguments.data, "tokenizers")
    llama = os.path.join(source, "llama2", "tokenizer.model")

    def put(name, reference, **options):
        write_cases(os.path.join(arguments.out, name + ".jsonl"), reference, texts + strings, 5000, **options)
        print(f"{name}: {len(texts)} real texts, {len(strings)} strings")

    try:
        import transformers
        slow = int(transformers.__version__.split(".")[0]) < 5
    except ImportError:
        slow = False
    if slow:
        write_cases(os.path.join(arguments.out, "llama2-special.jsonl"), SlowLlamaReference(llama), texts + strings,
                    0, variants=((True, True),))
        return
    print("llama2-special needs transformers 4.x: not written")
    put("llama2", SentencePieceReference(llama), variants=((False, False),))
    for name in ("neox", "o200k"):
        put(name, HfReference(Tokenizer.from_file(os.path.join(source, name, "tokenizer.json"))))
    put("opt", HfReference(gpt2_reference(os.path.join(source, "opt"))))

    # The committed tokenizers on the random strings.
    for name in sorted(os.listdir(arguments.fixtures)):
        folder = os.path.join(arguments.fixtures, name)
        path = os.path.join(folder, "tokenizer.json")
        if os.path.exists(path):
            reference, parse_special = HfReference(Tokenizer.from_file(path)), True
        elif os.path.exists(os.path.join(folder, "tokenizer.model")):
            reference, parse_special = SentencePieceReference(os.path.join(folder, "tokenizer.model")), False
        elif os.path.exists(os.path.join(folder, "vocab.json")):
            reference, parse_special = HfReference(gpt2_reference(folder)), True
        else:
            continue
        write_cases(os.path.join(arguments.out, f"small-{name}.jsonl"), reference, strings, 5000,
                    variants=((False, parse_special),))
        print(f"small-{name}: {len(strings)} strings")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    small = commands.add_parser("small")
    small.add_argument("--text", required=True, help="a public-domain text to train on (Tiny Shakespeare)")
    small.add_argument("--out", required=True)
    small.set_defaults(run=make_small)
    expected = commands.add_parser("expected")
    expected.add_argument("--data", required=True)
    expected.add_argument("--out", required=True)
    expected.add_argument("--fixtures", default="tests/fixtures/tokenizer")
    expected.add_argument("--strings", type=int, default=20_000)
    expected.set_defaults(run=make_expected)
    arguments = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
    arguments.run(arguments)


if __name__ == "__main__":
    main()
