#!/usr/bin/env python3
"""The real lm-evaluation-harness drives Triphase on a local task; its numbers are those of
`triphase eval`, and of the harness's own Hugging Face model where torch, transformers and accelerate are there.

    harness_test.py TRIPHASE [--python PYTHON]

PYTHON has lm_eval installed (pip install lm_eval); default: this one. Not part of ctest: it needs
packages from PyPI.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "tools" / "python" / "src"
MODEL = ROOT / "models" / "shipped" / "triphase-mha"


def harness(python, launcher, folder, tasks, *arguments):
    """{task: {metric: value}} of one run of the harness."""
    output = folder / f"results-{len(list(folder.iterdir()))}"
    subprocess.run([python, *launcher, "--tasks", tasks, "--include_path", str(folder / "task"),
                    "--output_path", str(output), *arguments], check=True, cwd=folder,
                   env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    files = sorted(output.rglob("results*.json"))
    if len(files) != 1:
        raise SystemExit(f"FAILED: {len(files)} result files under {output}")
    results = json.loads(files[0].read_text())["results"]
    return {task: {name.split(",")[0]: value for name, value in row.items() if isinstance(value, float)}
            for task, row in results.items()}


def close(name, one, other, tolerance):
    print(f"{name}: {one:.6f} and {other:.6f}")
    if not abs(one - other) <= tolerance:
        raise SystemExit(f"FAILED: {name} differs by more than {tolerance}")


def score(program, folder, lines):
    """Records of `triphase score`."""
    requests = folder / "requests.jsonl"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = subprocess.run([program, "score", "--model", MODEL, "--requests", requests, "--output", "-"],
                            check=True, capture_output=True, text=True).stdout
    return [json.loads(record) for record in output.splitlines()]


def check_windows(python, program, folder):
    """A text beyond the model's context is scored in the harness's windows."""
    whole = score(program, folder, [{"text": (ROOT / "docs" / "prompts.md").read_text()}])[0]
    limits = json.loads((MODEL / "config.json").read_text())
    split = ("import json, sys; from lm_eval.utils import get_rolling_token_windows as windows, make_disjoint_window\n"
             "ids, start, length = json.load(sys.stdin)\n"
             "print(json.dumps([make_disjoint_window(pair) for pair in windows(ids, start, length, 1)]))")
    ids = whole["tokens"]
    windows = json.loads(subprocess.run(
        [python, "-c", split], check=True, capture_output=True, text=True,
        input=json.dumps([ids, limits["bos_token_id"], limits["max_position_embeddings"]])).stdout)
    if len(windows) < 2:
        raise SystemExit(f"FAILED: {len(ids)} tokens are no text beyond the context")
    parts = score(program, folder, [{"context_tokens": context, "continuation_tokens": continuation}
                                    for context, continuation in windows])
    close("a long text, whole and in the harness's windows", whole["logprob"],
          sum(part["logprob"] for part in parts), 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("triphase", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    program = options.triphase.resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-harness-"))
    try:
        shutil.copytree(HERE / "task", folder / "task")
        questions = folder / "task" / "questions.jsonl"
        for task in (folder / "task").glob("*.yaml"):
            task.write_text(task.read_text().replace("QUESTIONS", str(questions)))
        ours = harness(options.python, ["-m", "triphase.lm_eval"], folder,
                       "triphase_local,triphase_rolling,triphase_generate", "--model", "triphase",
                       "--model_args", f"pretrained={MODEL},program={program}")
        row = json.loads(subprocess.run(
            [program, "eval", "--model", MODEL, "--task", "choice", "--data", questions, "--format", "json"],
            check=True, capture_output=True, text=True).stdout)[0]
        choice = ours["triphase_local"]
        close("accuracy, harness and eval", choice["acc"], row["accuracy"], 1e-12)
        close("normalized accuracy", choice["acc_norm"], row["accuracy_norm"], 1e-12)
        close("its standard error", choice["acc_stderr"], row["accuracy_stderr"], 1e-7)
        method = "attention=local,kv_sparsity=0.95"
        local = harness(options.python, ["-m", "triphase.lm_eval"], folder, "triphase_local",
                        "--model", "triphase", "--model_args", f"pretrained={MODEL},program={program},{method}")
        sparse = json.loads(subprocess.run(
            [program, "eval", "--model", MODEL, "--task", "choice", "--data", questions, "--format", "json",
             "--attention", "local", "--kv-sparsity", "0.95"], check=True, capture_output=True, text=True).stdout)[0]
        for metric, name in (("acc", "accuracy"), ("acc_norm", "accuracy_norm")):
            close(f"{name} under local attention", local["triphase_local"][metric], sparse[name], 1e-12)
        check_windows(options.python, program, folder)
        if not 0.5 < choice["acc"] <= 1.0:
            raise SystemExit("FAILED: no better than a guess")
        if not 1.0 < ours["triphase_rolling"]["byte_perplexity"] < 256.0:
            raise SystemExit("FAILED: a byte perplexity out of bounds")
        probe = subprocess.run([options.python, "-c", "import accelerate, torch, transformers"], check=False,
                               capture_output=True)
        if probe.returncode == 0:
            theirs = harness(options.python, ["-m", "lm_eval"], folder, "triphase_local,triphase_rolling",
                             "--model", "hf", "--device", "cpu", "--batch_size", "4", "--model_args",
                             f"pretrained={MODEL},dtype=float32,add_bos_token=True")
            # BF16 KV here, F32 there: a question may be decided otherwise only by a near tie.
            close("accuracy, ours and transformers'", choice["acc"], theirs["triphase_local"]["acc"], 1e-12)
            for metric in ("word_perplexity", "byte_perplexity"):
                one, other = ours["triphase_rolling"][metric], theirs["triphase_rolling"][metric]
                close(f"{metric}, ours and transformers'", one, other, 0.01 * other)
        print("the harness and triphase agree")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
