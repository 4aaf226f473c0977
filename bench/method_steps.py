#!/usr/bin/env python3
"""What a decode step costs under each attention method and KV type, beside dense attention over FP16 KV.

    bench/method_steps.py TRIPHASE --device cuda:0                      32 heads of 128 channels, 64 requests of 4,096 tokens
    bench/method_steps.py TRIPHASE --device cuda:0 --kv-heads 8 --context 16384 --batch-size 16
    bench/method_steps.py TRIPHASE --heads 4 --kv-heads 4 --batch-size 4 --context 200                        to try it

Whole jobs of random prompts on the real engine, all KV on the device. Unless --shape names another, the model is
attention for the most part: layers of the wanted heads with a narrow MLP and few words. A method runs two jobs, of
which the second makes --steps more tokens of each request: their difference is that many steps of all requests,
without beginning and end and without a trace, which takes time itself. A row is a JSON line: such a step, and how many
times as fast it is as dense's (speedup). Projections, norms, sampling and the host's part of a step are in every step,
so attention alone gains more than the speedup says.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from alisa_grid import write_prompts

HEAD_DIM = 128
JOB_SECONDS = 120
METHODS = {
    "dense": ["--kv-dtype", "fp16"],
    "dense-int8": ["--kv-dtype", "int8"],
    "sparq": ["--kv-dtype", "fp16", "--attention", "sparq", "--attention-option", "sparq.rank=32", "--attention-option",
              "sparq.k=128"],
    "sparq-int8": ["--kv-dtype", "int8", "--attention", "sparq", "--attention-option", "sparq.rank=32",
                   "--attention-option", "sparq.k=128"],
    "swa": ["--kv-dtype", "fp16", "--attention", "swa", "--kv-sparsity", "0.8"],
    "swa-int8": ["--kv-dtype", "int8", "--attention", "swa", "--kv-sparsity", "0.8"],
    "local": ["--kv-dtype", "fp16", "--attention", "local", "--kv-sparsity", "0.8"],
    "topk": ["--kv-dtype", "fp16", "--attention", "topk", "--kv-sparsity", "0.8"],
    "quest": ["--kv-dtype", "fp16", "--attention", "quest", "--kv-sparsity", "0.8"],
    "h2o": ["--kv-dtype", "fp16", "--attention", "h2o", "--kv-sparsity", "0.8"],
}  # fmt: skip


def config(arguments):
    """Layers of attention, next to nothing else."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": arguments.heads * HEAD_DIM,
            "intermediate_size": 512, "num_hidden_layers": arguments.layers, "num_attention_heads": arguments.heads,
            "num_key_value_heads": arguments.kv_heads, "head_dim": HEAD_DIM, "vocab_size": 512,
            "max_position_embeddings": longest_of(arguments), "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "float16"}  # fmt: skip


def summary_of(arguments, name, folder, tokens):
    """Of a job of so many tokens; subprocess.CalledProcessError where it cannot run."""
    shape = arguments.shape or folder / "config.json"
    command = [arguments.triphase, "run", "--model", shape, "--random-weights", "--prompts", folder / "prompts.jsonl",
               "--output", folder / "out.jsonl", "--overwrite", "--progress", "off", "--ignore-eos", "--batch-size",
               arguments.batch_size, "--max-tokens", tokens, "--max-context", longest_of(arguments), "--prefill-chunk", arguments.chunk,
               "--policy", "device-only", "--device", arguments.device, *METHODS[name]]  # fmt: skip
    subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, timeout=JOB_SECONDS)
    return json.loads((folder / "out.jsonl.summary.json").read_text(encoding="utf-8"))


def tokens_of(arguments):
    """Of each request of the shorter job, so that the last one is prefilled before the first one ends."""
    return -(-arguments.batch_size * arguments.context // arguments.chunk) + 6


def longest_of(arguments):
    return arguments.context + tokens_of(arguments) + arguments.steps


def measure(arguments, name, folder):
    if not arguments.shape:
        (folder / "config.json").write_text(json.dumps(config(arguments)), encoding="utf-8")
    write_prompts(folder / "prompts.jsonl", arguments.batch_size, arguments.context)
    tokens = tokens_of(arguments)
    try:
        shorter = summary_of(arguments, name, folder, tokens)
        longer = summary_of(arguments, name, folder, tokens + arguments.steps)
    except subprocess.CalledProcessError as error:
        # 5: it does not fit, or is not there. All else is a fault.
        kind = "refused" if error.returncode == 5 else "failed"
        return {"method": name, kind: error.stderr.strip().splitlines()[-3:], "exit": error.returncode}
    if longer["max_batch"] != arguments.batch_size or longer["steps"] - shorter["steps"] != arguments.steps:
        return {"method": name, "refused": [f"only {longer['max_batch']} requests at once"]}
    model = {"shape": arguments.shape} if arguments.shape else {
        "heads": arguments.heads, "kv_heads": arguments.kv_heads, "head_dim": HEAD_DIM, "layers": arguments.layers}  # fmt: skip
    seconds = longer["seconds"]["decode"] - shorter["seconds"]["decode"]
    return {"method": name, "device": arguments.device, "batch": arguments.batch_size, "context": arguments.context, **model,
            "steps": arguments.steps, "step_us": seconds * 1e6 / arguments.steps,
            "tokens_attended_fraction": (longer.get("attention") or {}).get("tokens_attended_fraction"),
            "prefill_seconds": min(job["seconds"]["prefill"] for job in (shorter, longer))}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triphase")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", help="a config.json or built-in shape; default: layers of attention alone")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=16384, help="prompt tokens of a prefill step")
    parser.add_argument("--steps", type=int, default=128, help="decode steps that count")
    parser.add_argument("--only", default="dense,dense-int8,sparq,sparq-int8,swa,swa-int8", help=f"of {', '.join(METHODS)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"--only {unknown[0]}: expected of {', '.join(METHODS)}")
    dense, failed = None, False
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                row = measure(arguments, name, pathlib.Path(folder))
            except subprocess.TimeoutExpired:
                row = {"method": name, "failed": [f"longer than {JOB_SECONDS} s"]}
            dense = dense or row.get("step_us")
            if dense and "step_us" in row:
                row["speedup"] = dense / row["step_us"]
            failed = failed or "failed" in row
            print(json.dumps(row), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
