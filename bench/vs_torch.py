#!/usr/bin/env python3
"""Dense attention of PyTorch on this GPU, decode or whole prompts, each SDPA backend forced in turn: the anchor
for `triphase bench attention`. Prints JSON lines.

Usage: vs_torch.py [--shape B,H,KV,D,S[,Q]]... [--dtype fp16|bf16] [--samples N] [--ours FILE]
  --shape       Q queries a sequence: 1 (default), or S, a whole prompt
  --ours FILE   JSON of `triphase bench attention --format json` on the same GPU: adds our time and the
                ratio to the fastest backend. Shapes are taken from it when none is given.

Full-length contiguous K and V, enable_gqa when heads share them. One query has no mask and no causal flag
(PyTorch's top-left mask would leave key 0 only); a whole prompt is causal. Every call is
replayed from a CUDA graph over rotating K and V that add up to more than ten times the L2 cache; a
sample is one replay of the whole set; the median counts. A backend that has no kernel for a shape is
reported as absent, with PyTorch's reason. Exit 5 when there is no PyTorch or no GPU.
"""

import argparse
import json
import math
import statistics
import sys
import warnings

DEFAULT_SHAPES = [
    (64, 32, 32, 128, 1024, 1), (64, 32, 32, 128, 4096, 1), (64, 32, 32, 128, 16384, 1),
    (64, 32, 8, 128, 4096, 1), (16, 32, 8, 128, 16384, 1), (1, 32, 8, 128, 131072, 1),
    (1, 32, 32, 128, 2048, 2048), (1, 32, 32, 128, 8192, 8192),
]
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
MEMORY_SHARE = 0.7  # of what is free; the math backend makes copies of K and V


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", default=[], metavar="B,H,KV,D,S[,Q]")
    parser.add_argument("--dtype", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--ours", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.samples < 5:
        parser.error("--samples: expected at least 5")
    try:
        arguments.shapes = [tuple(int(part) for part in text.split(",")) for text in arguments.shape]
    except ValueError:
        parser.error("--shape: expected integers, B,H,KV,D,S[,Q]")
    for at, shape in enumerate(arguments.shapes):
        if len(shape) not in (5, 6) or min(shape) < 1 or shape[1] % shape[2] != 0 or shape[5:] not in ((), (1,), shape[4:5]):
            parser.error(f"--shape {shape}: expected B,H,KV,D,S[,Q] with KV dividing H, and Q 1 or S")
        arguments.shapes[at] = (*shape, 1)[:6]
    return arguments


def our_cells(path, dtype):
    """(B, H, KV, D, S, Q) -> microseconds, from our own dense rows of this type: decode, and whole prompts."""
    cells = {}
    with open(path, encoding="utf-8") as file:
        for row in json.load(file):
            if (row.get("op"), row.get("method"), row.get("kv_dtype")) != ("attention", "dense", dtype):
                continue
            if row["queries"] in (1, row["context"]):
                shape = ("batch", "heads", "kv_heads", "head_dim", "context", "queries")
                cells[tuple(row[name] for name in shape)] = row["us"]
    return cells


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * (len(ordered) - 1) + 0.5))]


def time_backend(torch, backend, shape, dtype, samples):
    """Microseconds per call: (median, p10, p90, sets), or a text that says why there is no kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, kv_heads, dim, context, queries = shape
    element = torch.empty((), dtype=dtype).element_size()
    set_bytes = 2 * batch * kv_heads * context * dim * element
    l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20) or (64 << 20)
    sets = max(3, math.ceil(10 * l2 / set_bytes) + 1)
    free, _ = torch.cuda.mem_get_info()
    if sets * set_bytes > MEMORY_SHARE * free:
        sets = int(MEMORY_SHARE * free // set_bytes)
    if sets < 1:
        return f"{set_bytes} bytes of K and V do not fit beside each other"
    generator = torch.Generator(device="cuda").manual_seed(1)

    def random(*size):
        return torch.randn(*size, device="cuda", dtype=dtype, generator=generator)

    q = random(batch, heads, queries, dim)
    pairs = [(random(batch, kv_heads, context, dim), random(batch, kv_heads, context, dim)) for _ in range(sets)]

    def call(k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=heads != kv_heads)

    try:
        with sdpa_kernel(getattr(SDPBackend, backend)), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    for k, v in pairs[:2]:
                        call(k, v)
                side.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    for k, v in pairs:
                        call(k, v)
            except RuntimeError as error:
                reasons = [str(warning.message).splitlines()[0] for warning in said] or [str(error).splitlines()[0]]
                return "; ".join(dict.fromkeys(reasons))[:300]
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        times = []
        for _ in range(samples):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / sets)
        times.sort()
        return statistics.median(times), percentile(times, 0.1), percentile(times, 0.9), sets
    except torch.OutOfMemoryError as error:
        return f"out of memory: {str(error).splitlines()[0]}"[:300]
    finally:
        del pairs, q
        torch.cuda.empty_cache()


def measure(torch, shape, arguments, ours):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]
    batch, heads, kv_heads, dim, context, queries = shape
    read = 2 * batch * kv_heads * context * dim * 2
    products = 4 * batch * heads * dim * queries * (context - (queries - 1) / 2)

    def rates(us):
        return {"GB/s": read / us * 1e-3, "TFLOP/s": products / us * 1e-6}

    rows = []
    for backend in BACKENDS:
        result = time_backend(torch, backend, shape, dtype, arguments.samples)
        row = {"op": "attention", "method": "dense", "kernel": f"torch {backend.lower()}", "kv_dtype": arguments.dtype,
               "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "queries": queries, "context": context}
        if isinstance(result, str):
            row.update(us=None, absent=result)
        else:
            median, low, high, sets = result
            row.update(us=median, us_p10=low, us_p90=high, samples=arguments.samples, sets=sets, **rates(median))
        rows.append(row)
    fastest = min((row for row in rows if row["us"]), key=lambda row: row["us"], default=None)
    if fastest and shape in ours:
        rows.append({**fastest, "kernel": "triphase", "us": ours[shape], "us_p10": None, "us_p90": None, "samples": None,
                     "sets": None, **rates(ours[shape]), "fastest": fastest["kernel"],
                     "times_as_fast_as_fastest": fastest["us"] / ours[shape]})
    return rows


def main():
    arguments = parse_arguments()
    ours = our_cells(arguments.ours, arguments.dtype) if arguments.ours else {}
    try:
        import torch
    except ImportError as error:
        print(f"vs_torch: error: PyTorch: {error}; hint: run with a Python that has it", file=sys.stderr)
        return 5
    if not torch.cuda.is_available():
        print("vs_torch: error: PyTorch sees no CUDA device", file=sys.stderr)
        return 5
    properties = torch.cuda.get_device_properties(0)
    print(f"vs_torch: {properties.name}, torch {torch.__version__}, median of {arguments.samples}", file=sys.stderr)
    shapes = arguments.shapes or list(ours) or DEFAULT_SHAPES
    for shape in shapes:
        for row in measure(torch, shape, arguments, ours):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
