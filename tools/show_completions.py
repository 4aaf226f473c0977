#!/usr/bin/env python3
"""Prints prompts and completions side by side, and the throughput of the run.

Usage: show_completions.py PROMPTS.jsonl OUTPUT.jsonl
"""

import json
import sys


def shorten(text: str, width: int, keep_end: bool) -> str:
    flat = " ".join(text.split())
    if len(flat) <= width:
        return flat
    return "..." + flat[-(width - 3) :] if keep_end else flat[: width - 3] + "..."


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    prompts_path, output_path = sys.argv[1:]
    with open(prompts_path, encoding="utf-8") as file:
        prompts = [json.loads(line) if line.strip() else None for line in file]
    with open(output_path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    for record in records:
        prompt = prompts[record["index"]]
        print(f"[{record.get('id', record['index'])}] {shorten(prompt['prompt'], 140, True)}")
        if "error" in record:
            print(f"    error {record['error']['code']}: {record['error']['message']}")
        else:
            print(f"    -> {shorten(record['text'], 200, False)}")
    with open(output_path + ".summary.json", encoding="utf-8") as file:
        summary = json.load(file)
    print()
    print(json.dumps(summary["throughput"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
