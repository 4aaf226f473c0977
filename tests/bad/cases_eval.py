"""Hostile command lines and files of `triphase eval`. Single lines of data are in eval_test.cpp, whole
files with a model that has a tokenizer in tests/e2e/eval_test.py.
"""

from bad_case import Case


def evaluate(task, *extra):
    return ("eval", "--model", "MODEL", "--task", task, "--data", "PROMPTS", *extra)


def nothing(_folder):
    pass


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
    ]
