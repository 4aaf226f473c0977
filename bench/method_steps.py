#!/usr/bin/env python3
"""What a decode step costs under each attention method and KV type, beside dense attention over FP16 KV.

    bench/method_steps.py TRIPHASE --device cuda:0                      32 heads of 128 channels, 64 requests of 4,096 tokens
    bench/method_steps.py TRIPHASE --device cuda:0 --kv-heads 8 --context 16384 --batch-size 16
    bench/method_steps.py TRIPHASE --heads 4 --kv-heads 4 --batch-size 4 --context 200                        to try it

Whole jobs of random prompts on the real engine, all KV on the device. Unless --shape names another, the model is
attention for the most part: layers of the wanted heads with a narrow MLP and few words. A row is a JSON line: the median
decode step with all requests, and how many times as fast it is as dense's (speedup). Projections, norms, sampling and the host's part of a step are in every step, so attention alone gains more than the speedup says.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from alisa_grid import counted_steps, write_prompts

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
            "max_position_embeddings": 2 * arguments.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "float16"}  # fmt: skip


def decode_steps(trace):
    """Microseconds of the decode steps with the most requests, and how many requests that is."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    steps = sorted((event for event in events if event["ph"] == "X" and event["name"] == "step"), key=lambda event: event["ts"])
    most = max(step["args"]["decode_rows"] for step in steps)
    counted, _ = counted_steps(steps, 0, most)
    # From begin to begin: the host's part between two steps counts.
    following = {step["ts"]: after["ts"] for step, after in zip(steps, steps[1:], strict=False)}
    return [following[step["ts"]] - step["ts"] for step in counted if step["ts"] in following], most


def measure(arguments, name, folder):
    shape = arguments.shape or folder / "config.json"
    if not arguments.shape:
        shape.write_text(json.dumps(config(arguments)), encoding="utf-8")
    prompts, trace, output = folder / "prompts.jsonl", folder / "trace.json", folder / "out.jsonl"
    write_prompts(prompts, arguments.batch_size, arguments.context)
    steps_of_prefill = -(-arguments.batch_size * arguments.context // arguments.chunk)
    tokens = steps_of_prefill + 6 + arguments.steps
    command = [arguments.triphase, "run", "--model", shape, "--random-weights", "--prompts", prompts, "--output", output,
               "--overwrite", "--progress", "off", "--ignore-eos", "--batch-size", arguments.batch_size, "--max-tokens",
               tokens, "--max-context", arguments.context + tokens, "--prefill-chunk", arguments.chunk, "--policy",
               "device-only", "--device", arguments.device, "--trace", trace, *METHODS[name]]  # fmt: skip
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=JOB_SECONDS)
    if done.returncode != 0:
        return {"method": name, "refused": done.stderr.strip().splitlines()[-1:]}
    summary = json.loads(pathlib.Path(f"{output}.summary.json").read_text(encoding="utf-8"))
    steps, rows = decode_steps(trace)
    if rows != arguments.batch_size or not steps:
        return {"method": name, "refused": [f"only {rows} requests at once, {len(steps)} steps"]}
    model = {"shape": arguments.shape} if arguments.shape else {
        "heads": arguments.heads, "kv_heads": arguments.kv_heads, "head_dim": HEAD_DIM, "layers": arguments.layers}  # fmt: skip
    return {"method": name, "device": arguments.device, "batch": rows, "context": arguments.context, **model,
            "steps": len(steps), "step_us": statistics.median(steps), "step_us_least": min(steps),
            "tokens_attended_fraction": (summary.get("attention") or {}).get("tokens_attended_fraction"),
            "prefill_seconds": summary["seconds"]["prefill"], "decode_seconds": summary["seconds"]["decode"]}  # fmt: skip


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
    parser.add_argument("--steps", type=int, default=12, help="decode steps that count")
    parser.add_argument("--only", default="dense,dense-int8,sparq,sparq-int8,swa,swa-int8", help=f"of {', '.join(METHODS)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"--only {unknown[0]}: expected of {', '.join(METHODS)}")
    dense = None
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                row = measure(arguments, name, pathlib.Path(folder))
            except subprocess.TimeoutExpired:
                row = {"method": name, "refused": [f"longer than {JOB_SECONDS} s"]}
            dense = dense or row.get("step_us")
            if dense and "step_us" in row:
                row["speedup"] = dense / row["step_us"]
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
