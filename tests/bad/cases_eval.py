"""Hostile command lines and files of `triphase eval`. More lines of data are in eval_test.cpp."""

import resource

from bad_case import Case, ModelFolder, llama_config, llama_shapes, random_tensors
from cases_model import poison
from cases_tokenizer import ROWS, byte_level, write


def evaluate(task, *extra):
    return ("eval", "--model", "MODEL", "--task", task, "--data", "PROMPTS", *extra)


def nan_weights(folder):
    write(folder, byte_level(), [{"prompt": "ab", "answer": "c"}])
    tensors = random_tensors(llama_shapes(llama_config(vocab_size=ROWS)))
    poison(tensors)
    ModelFolder(folder / "model").tensors(tensors)


def nothing(_folder):
    pass


def data(row, task, content, *texts):
    return Case(row, lambda folder: (write(folder, byte_level()), (folder / "prompts.jsonl").write_bytes(content)), 4,
                args=evaluate(task), stderr=(*texts, "prompts.jsonl"))


def cases():
    def no_data(folder):
        (folder / "prompts.jsonl").unlink()

    def data_is_a_directory(folder):
        no_data(folder)
        (folder / "prompts.jsonl").mkdir()

    return [
        Case("V1-no-tokenizer", nothing, 3, args=evaluate("choice"), stderr=("E-TOK-NONE",)),
        Case("V2-no-data", no_data, 4, args=evaluate("perplexity"), stderr=("E-IN-OPEN",)),
        Case("V3-data-is-a-directory", data_is_a_directory, 4, args=evaluate("perplexity"), stderr=("E-IN-OPEN",)),
        Case("V4-unknown-task", nothing, 2, args=evaluate("mmlu"), stderr=("--task", "perplexity")),
        Case("V5-attention", nothing, 2, args=evaluate("perplexity", "--attention=dense,magic"), stderr=("expected dense, local",)),
        Case("V6-samples", nothing, 2, args=evaluate("needle", "--samples=0"), stderr=("--samples",)),
        Case("V7-no-task", nothing, 2, args=("eval", "--model", "MODEL", "--data", "PROMPTS"), stderr=("--task",)),
        Case("V8-device-memory", nothing, 2, args=evaluate("perplexity", "--device-memory=8"), stderr=("unit",)),
        Case("V8-full-disk", lambda folder: write(folder, byte_level(), [b"ab" * 40]), 6,
             args=evaluate("perplexity", "--output", "report"), stdout=("perplexity of",),
             stderr=("eval.json", "E-IO-NOSPACE"), limits={resource.RLIMIT_FSIZE: 600}),
        Case("V8-nan-logits", nan_weights, 3, stderr=("prompts.jsonl:1", "E-NUM-LOGITS", "hint: --kv-dtype fp32"),
             args=evaluate("exact-match", "--check-weights=off", "--max-tokens=2")),
        data("V9-empty", "choice", b"\n\n", "E-IN-EVAL"),
        data("V9-not-json", "choice", b"\n{\n", "prompts.jsonl:2", "E-IN-EVAL"),
        data("V9-array", "choice", b"[]\n", "E-IN-EVAL"),
        data("V9-answer-beyond-the-choices", "choice", b'{"context": "a", "choices": ["b", "c"], "answer": 2}\n',
             "answer", "E-IN-EVAL"),
        data("V9-too-long", "choice", b'{"context": "%s", "choices": ["b", "c"], "answer": 1}\n' % (b"a" * 100),
             "E-IN-EVAL"),
        data("V9-answer-of-another-type", "exact-match", b'{"prompt": "a", "answer": [1]}\n', "answer", "E-IN-EVAL"),
        data("V9-control-bytes", "exact-match", b'{"prompt\x1b[2J": "a"}\n', "E-IN-EVAL"),
        data("V9-no-utf8", "perplexity", b"text \xff", "E-IN-UTF8"),
        data("V9-too-short", "perplexity", b"a", "E-IN-EVAL"),
    ]
