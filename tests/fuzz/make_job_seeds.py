#!/usr/bin/env python3
"""Makes seed inputs and dictionaries for the fuzz targets of prompts, records and manifests.

    make_job_seeds.py FOLDER

Prompt lines come from the hostile corpus of tests/bad.
"""

import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bad"))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from cases_clusters import FACTS as CLUSTERS  # noqa: E402
from cases_plan import PLAN as BAD_PLAN, PROFILE as BAD_PROFILE  # noqa: E402
from make_corpus import build_case, load_cases  # noqa: E402
from make_seeds import Seeds  # noqa: E402

PARAMETERS = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
              "repetition_penalty": 1.1, "stop": ["a"], "seed": 7, "logprobs": 2, "ignore_eos": True}
LINES = [
    {"id": "a", "prompt": "Once", **PARAMETERS},
    {"id": 7, "prompt_tokens": [1, 2]},
    {"prompt_token_ids": []},
    {"custom_id": "r", "method": "POST", "url": "/v1/completions",
     "body": {"model": "m", "prompt": "x", "n": 1, "echo": False, **PARAMETERS}},
    [1, 2, 3],
]
REQUESTS = [
    {"id": "a", "context": "Once", "continuation": " upon"},
    {"id": 7, "context_tokens": [1, 2], "continuation_tokens": [3]},
    {"id": "b", "text": "Once upon"},
    {"text_tokens": [1, 2, 3]},
]
ERROR = {"code": "E-IN-JSON", "message": "byte 1"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
RECORDS = [
    {"id": "a", "index": 0, "text": "x", "tokens": [1], "finish_reason": "length", "usage": USAGE},
    {"index": 1, "error": ERROR},
    {"id": 4, "index": 4, "logprob": -1.5, "is_greedy": True, "tokens": [1], "usage": USAGE},
    {"id": "batch_req_2", "custom_id": "r", "index": 2, "error": None,
     "response": {"status_code": 200, "request_id": "req_2",
                  "body": {"choices": [{"tokens": [1]}], "usage": USAGE}}},
    {"id": "batch_req_5", "custom_id": "c", "index": 5, "error": None,
     "response": {"status_code": 200, "request_id": "req_5",
                  "body": {"choices": [{"message": {"content": "x"}, "tokens": [1]}, {"tokens": []}],
                           "usage": USAGE}}},
    {"id": "batch_req_3", "custom_id": None, "index": 3, "error": ERROR,
     "response": {"status_code": 400, "request_id": "req_3", "body": {"error": ERROR}}},
]
MANIFEST = {
    "format": "triphase-manifest/3", "program": {"version": "0.1.0", "commit": "0", "kernels": "AVX2"},
    "input": {"path": "in", "bytes": 9, "lines": 4, "hash": "xxh3:0", "format": "auto"},
    "model": {"path": "m", "fingerprint": "xxh3:1", "weights": "", "generation_config": "", "tokenizer": "",
              "chat_template": ""},
    "generation": {"max_tokens": 16, "stop": ["a"], "ignore_eos": False, "weights_dtype": None},
    "seed": 0, "kv_dtype": "fp32", "cached_hidden_states": 0, "plan_hash": "", "shard": {"index": 0, "count": 1},
    "records": 4, "order": "input", "started": 0, "writer": {"pid": 1, "host": "h"},
}
LINE_TABLE = {"bytes": [1, 1024], "seconds": [1e-6, 2e-6], "spread": [0, 0]}
PROFILE = {
    "format": "triphase-profile/3", "name": "p", "measured": True, "emulated": True,
    "device": {"name": "d", "memory_bytes": 1024}, "host": {"name": "h", "memory_bytes": 4096}, "link": "l",
    "model": {"name": "m", "fingerprint": "xxh3:1", "layers": 2, "hidden_size": 8, "q_width": 8, "kv_width": 8,
              "head_dim": 4, "ffn_size": 16, "held_ffn_size": 16},
    "notes": ["a"],
    "tables": {
        "decode": {"batch": [1, 2], "tokens_attended": [0, 64], "seconds": [[1, 2], [3, 4]]},
        "prefill": {"tokens": [1], "context": [0], "seconds": [[1]]},
        "recompute": {"batch": [1], "tokens": [1], "seconds": [[1]], "spread": [[0]]},
        "h2d": LINE_TABLE, "d2h": LINE_TABLE,
        "gather": {"record_bytes": [256], "count": [0, 9], "seconds": [[0, 1]]},
        "quantize": {"tokens": [1], "seconds": [1]},
        "host_attention": {"batch": [1], "tokens_attended": [1], "seconds": [[1]]},
    },
}
PHASE = {"steps": 1, "seconds": 1, "compute_seconds": 1, "transfer_seconds": 0, "recompute_seconds": 0}
PLAN = {
    "format": "triphase-plan/1", "model": {"name": "m", "fingerprint": "f"}, "profile": "xxh3:1",
    "machine": "c; memory copies",
    "workload": {"batch_size": 1, "input_len": 1, "output_len": 3, "caching_ratio": 0.2, "miss_rate": 1},
    "budget": {"device_bytes": 1, "host_bytes": 1}, "kv_dtype": "int8", "block_tokens": 32,
    "recompute_source": "hidden-states-int8",
    "schedule": {"kind": "paper", "p1": 1, "p2": 2, "alpha": 0.5, "beta": 0.5, "device_tokens": 0,
                 "window_tokens": 1, "window_share": 0.1, "input_tokens": 1, "streamed_layers": 0},
    "prefill_seconds": 1, "phases": [PHASE, PHASE, PHASE], "decode_seconds": 3, "tokens_per_second": 1,
    "device_peak_bytes": 1, "host_peak_bytes": 1, "paper_objective_seconds": 1,
    "paper_schedule_seconds": 1, "extrapolated": False,
    "neighbours": [{"change": "p1 1 -> 2", "seconds": 1, "infeasible": ""}],
}
SPARSITY = {
    "format": "triphase-sparsity/1", "attention": "swa", "max_divergence": 0.1, "prompts": 3, "kv_dtype": "fp16",
    "tried": [{"kv_sparsity": 0.8, "kl_divergence": 0.05, "kl_divergence_stderr": 0.01, "greedy_agreement": 0.9,
               "greedy_agreement_stderr": 0.01, "tokens": 40}],
    "chosen": 0.8,
}
SIZES = ["16GiB", "1.5 MB", "4096B", "10s", "2.5m", "1h", "20GB/s", "500MB/s,2us", "-3", "1e308", "18446744073709551615"]
CONFIG_FILES = ["max-tokens = 4\nseed=7\n# comment\nignore-eos\n", "stop = a\nstop = b\ntemperature=0.5\nshard=0/2\n",
                "device-memory = 16GiB\nsync-every=5s\nkv-dtype=int8\npolicy=flexgen\npolicy-option=kv-share=0.5\n",
                "attention = sparq\nattention-option=sparq.rank=8\nkv-sparsity=auto\nemulate-link=20GB/s,2us\n",
                "model = other\n[section]\nx = 1\n", "output=\n"]
EVAL_LINES = [
    {"context": "a", "choices": ["b", "c"], "answer": 1},
    {"contexts": ["a", "b"], "continuation": "c", "answer": 0},
    {"prompt": "a", "answer": "b"},
    {"prompt": "a", "answer": ["b", "c"]},
]
WORDS = {
    "fuzz_config_file": ["max-tokens", "device-memory", "attention", "policy", "kv-sparsity", "stop", "shard", "\\x0a"],
    "fuzz_eval_data": ["context", "contexts", "choices", "continuation", "prompt", "answer", "\\x0a"],
    "fuzz_merge": [*MANIFEST, "index", "error", "tokens"],
    "fuzz_prompt_file": ["prompt", "prompt_tokens", "messages", "custom_id", "\\xef\\xbb\\xbf", "\\xff\\xfe"],
    "fuzz_sizes": ["GiB", "MB", "GB/s", "us", "e308"],
    "fuzz_sparsity": [*SPARSITY, *SPARSITY["tried"][0], "null"],
    "fuzz_clusters": [*CLUSTERS, *CLUSTERS["model"], *CLUSTERS["context"], *CLUSTERS["options"], *CLUSTERS["fine"],
                      *CLUSTERS["calibration"], *CLUSTERS["data"], "full", "pruned", "triphase-clusters/1"],
    "fuzz_plan": [*PLAN, *PLAN["schedule"], *PLAN["workload"], *PHASE, "change", "infeasible", "fp16", "never",
                  "adaptive"],
    "fuzz_profile": [*PROFILE, *PROFILE["tables"], "batch", "tokens_attended", "context", "seconds", "spread",
                     "record_bytes", "count", "bytes", "layers", "hidden_size", "kv_width", "1e308"],
    "fuzz_prompt_line": ["prompt", "prompt_tokens", "prompt_token_ids", "messages", "id", "custom_id",
                         "body", "url", "method", "POST", "/v1/completions", "/v1/chat/completions",
                         "model", "n", "best_of", "echo", "suffix", "logit_bias", "presence_penalty",
                         "\\xff", "\\\\ud800", *PARAMETERS],
    "fuzz_score_line": ["id", "context", "continuation", "text", "context_tokens", "continuation_tokens",
                        "text_tokens", "\\xff", "\\\\ud800"],
    "fuzz_resume_scan": ["index", "tokens", "error", "code", "message", "response", "status_code",
                         "\\x0a", "\\x00", "null"],
    "fuzz_manifest": [*MANIFEST, "version", "commit", "path", "bytes", "lines", "hash", "count", "pid"],
}


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    seeds = Seeds(pathlib.Path(sys.argv[1]))
    for choice in range(16):
        for line in LINES:
            seeds.add("fuzz_prompt_line", bytes([choice]) + json.dumps(line).encode())
    for choice in range(2):
        for line in REQUESTS:
            seeds.add("fuzz_score_line", bytes([choice]) + json.dumps(line).encode())
    with tempfile.TemporaryDirectory() as scratch:
        for case in load_cases():
            scored = "score" in case.args[:1]
            if not case.id.startswith("P") and not scored:
                continue
            target = "fuzz_score_line" if scored else "fuzz_prompt_line"
            folder = pathlib.Path(scratch) / case.id
            build_case(case, folder)
            if (folder / "prompts.jsonl").is_file():
                for line in set((folder / "prompts.jsonl").read_bytes().split(b"\n")):
                    seeds.add(target, b"\0" + line)
    records = [json.dumps(record).encode() + b"\n" for record in RECORDS]
    for content in (*records, b"".join(records), b"".join(records)[:-5], records[0] + b"x\n",
                    records[0] + b"x\n" + records[1], b"".join(records) + b"\0" * 9):
        for chunk in (0, 255):
            seeds.add("fuzz_resume_scan", bytes([chunk]) + content)
    seeds.add("fuzz_manifest", json.dumps(MANIFEST).encode())
    seeds.add("fuzz_profile", json.dumps(PROFILE).encode())
    seeds.add("fuzz_plan", json.dumps(PLAN).encode())
    two_levels = dict(CLUSTERS, options=dict(CLUSTERS["options"], levels=2), coarse=dict(CLUSTERS["fine"], clusters=1),
                      calibration=dict(CLUSTERS["calibration"], kept_share_levels2=0.1, looked_up_share=0.05))
    for facts in (CLUSTERS, two_levels):
        seeds.add("fuzz_clusters", json.dumps(facts).encode())
    seeds.add("fuzz_profile", json.dumps(BAD_PROFILE).encode())
    seeds.add("fuzz_plan", json.dumps(BAD_PLAN).encode())
    seeds.add("fuzz_sparsity", json.dumps(SPARSITY).encode())
    seeds.add("fuzz_sparsity", json.dumps(dict(SPARSITY, chosen=None)).encode())
    for text in CONFIG_FILES:
        seeds.add("fuzz_config_file", text.encode())
    for line in EVAL_LINES:
        seeds.add("fuzz_eval_data", json.dumps(line).encode() + b"\n\n" + json.dumps(line).encode())
    for text in SIZES:
        seeds.add("fuzz_sizes", text.encode())
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)
    for content in (lines, lines[:-1], b"\xef\xbb\xbf" + lines, lines.replace(b"\n", b"\r\n\n")):
        seeds.add("fuzz_prompt_file", b"\0" + content)
    shards = b"\0".join(
        b"".join(records[at::2][:2]) + b"\0" +
        json.dumps(dict(MANIFEST, shard={"index": at, "count": 2}, records=2)).encode() for at in (0, 1))
    seeds.add("fuzz_merge", shards)
    for target, words in WORDS.items():
        lines = [f'"{word}"' for word in words] + [f'"\\"{word}\\":"' for word in words]
        (seeds.folder / f"{target}.dict").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
