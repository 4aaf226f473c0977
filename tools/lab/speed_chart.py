#!/usr/bin/env python3
"""Draws docs/speed.svg, the README's chart, from the committed results of bench/vs_llama_cpp.py.

Usage: tools/lab/speed_chart.py
"""

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/amd-epyc-2-threads/vs_llama_cpp.json"
NAMES = {"llama-110m": "110M", "tinyllama-1.1b": "TinyLlama 1.1B", "llama-2-7b-4layers": "LLaMA-2-7B, 4 layers"}
LEFT, SCALE, STEP, TOP = 316, 170, 24, 44  # pixels; SCALE of a ratio of 1


def ratios():
    """(label, median ratio) of the cells that were measured."""
    found = {}
    for cell in json.loads(RESULTS.read_text(encoding="utf-8"))["cells"]:
        if "decode_ratios" in cell:
            key = (list(NAMES).index(cell["shape"]), cell["context"], cell["batch"])
            found[key] = statistics.median(cell["decode_ratios"])
    return [(f"{NAMES[list(NAMES)[shape]]}, {context} tokens, batch {batch}", ratio)
            for (shape, context, batch), ratio in sorted(found.items())]


def main():
    rows = ratios()
    height, width = TOP + STEP * len(rows) + 12, LEFT + int(2.6 * SCALE) + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        "<title>Decode speed as a multiple of llama.cpp's</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<text x="12" y="20" font-weight="bold" fill="#222">Decode: Triphase, as a multiple of llama.cpp</text>',
        '<text x="12" y="36" font-size="11" fill="#555">AMD EPYC, 2 threads, F16 weights and KV; median of turns</text>',
    ]
    for at, (label, ratio) in enumerate(rows):
        y = TOP + STEP * at
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end" fill="#222">{label}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{ratio * SCALE:.0f}" height="{STEP - 7}" fill="#2b6cb0"/>',
            f'<text x="{LEFT + ratio * SCALE + 6:.0f}" y="{y + 15}" fill="#222">{ratio:.2f}x</text>',
        ]
    x = LEFT + SCALE
    lines += [f'<line x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{height - 8}" stroke="#222" stroke-dasharray="4 3"/>', "</svg>"]
    (ROOT / "docs/speed.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
