"""Hostile plans and profiles given to `triphase run`: bad-inputs Q rows.

A plan is refused by what it says before its model is compared, so most cases need no fingerprint of
the tiny model.
"""

import json

from bad_case import Case
from cases_model import link_to_itself

PHASE = {"steps": 1, "seconds": 1, "compute_seconds": 1, "transfer_seconds": 0, "recompute_seconds": 0}
PLAN = {
    "format": "triphase-plan/1",
    "model": {"name": "tiny", "fingerprint": "xxh3:0000000000000000"},
    "profile": "xxh3:1",
    "machine": "another CPU, cpu (avx2), 96 threads; memory copies",
    "workload": {"batch_size": 2, "input_len": 8, "output_len": 8, "caching_ratio": 1, "miss_rate": 1},
    "budget": {"device_bytes": 1048576, "host_bytes": 1048576},
    "kv_dtype": "fp32",
    "block_tokens": 32,
    "recompute_source": "never",
    "schedule": {"kind": "adaptive", "p1": 2, "p2": 8, "alpha": 0, "beta": 0, "device_tokens": 8, "window_tokens": 0,
                 "window_share": 0, "input_tokens": 0, "streamed_layers": 0},
    "prefill_seconds": 1,
    "phases": [PHASE, PHASE, PHASE],
    "decode_seconds": 3,
    "tokens_per_second": 1,
    "device_peak_bytes": 1,
    "host_peak_bytes": 1,
    "paper_objective_seconds": 1,
    "paper_schedule_seconds": 1,
    "extrapolated": False,
    "neighbours": [],
}
LINE = {"bytes": [1, 2], "seconds": [1, 2]}
PROFILE = {
    "format": "triphase-profile/3",
    "name": "p",
    "measured": True,
    "emulated": False,
    "device": {"name": "another CPU", "memory_bytes": 1048576},
    "host": {"name": "h", "memory_bytes": 1048576},
    "link": "memory copies",
    "model": {"name": "tiny", "fingerprint": "", "layers": 2, "hidden_size": 16, "q_width": 16, "kv_width": 8,
              "head_dim": 8, "ffn_size": 24, "held_ffn_size": 24},
    "notes": [],
    "tables": {
        "decode": {"batch": [1, 2], "tokens_attended": [0, 64], "seconds": [[1, 2], [3, 4]]},
        "prefill": {"tokens": [1], "context": [0], "seconds": [[1]]},
        "recompute": {"batch": [1], "tokens": [1], "seconds": [[1]]},
        "h2d": LINE,
        "d2h": LINE,
        "gather": {"record_bytes": [256], "count": [1, 9], "seconds": [[1, 2]]},
        "quantize": {"tokens": [1], "seconds": [1]},
    },
}
METHOD = {
    "attention": "swa",
    "attention_options": [],
    "choosing": {"batch": [1, 2], "context_tokens": [0, 64], "seconds": [[1, 2], [3, 4]]},
}


def file_with(name, content):
    def build(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return build


def changed(base, path, value):
    """A copy of `base` with the field at `path` ("a.b") set, or removed when `value` is None."""
    out = json.loads(json.dumps(base))  # shares nothing, also where the base repeats an object
    *parents, last = path.split(".")
    place = out
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return out


def plan(row, content, *texts, exit=4, extra=()):
    return Case(row, file_with("plan.json", content), exit, extra=("--plan", "plan.json", *extra), stderr=texts)


def profile(row, content, *texts, exit=4, extra=()):
    return Case(row, file_with("profile.json", content), exit, extra=("--profile", "profile.json", *extra),
                stderr=texts)


def cases():
    whole = json.dumps(PLAN).encode()
    return [
        plan("Q1-plan-of-another-model", PLAN, "model.fingerprint", "xxh3:0000000000000000", "E-PLAN-MODEL"),
        plan("Q1-plan-force-is-not-for-models", PLAN, "E-PLAN-MODEL", extra=("--plan-force",)),
        plan("Q2-plan-empty", b"", "E-PLAN-FILE"),
        plan("Q2-plan-truncated", whole[:200], "E-PLAN-FILE"),
        plan("Q2-plan-not-json", b"\x00\xff\x1b[2J", "E-PLAN-FILE"),
        plan("Q2-plan-version", changed(PLAN, "format", "triphase-plan/2"), "triphase-plan/2", "E-PLAN-FILE"),
        plan("Q2-plan-is-a-profile", PROFILE, "triphase-profile/3", "E-PLAN-FILE"),
        plan("Q2-plan-lacks-machine", changed(PLAN, "machine", None), "machine: missing", "E-PLAN-FILE"),
        plan("Q2-plan-unknown-field", changed(PLAN, "schedule.gamma", 1), "schedule.gamma", "E-PLAN-FILE"),
        plan("Q3-plan-alpha", changed(PLAN, "schedule.alpha", 1.5), "schedule.alpha: 1.5", "E-PLAN-FILE"),
        plan("Q3-plan-nan", whole.replace(b'"alpha": 0', b'"alpha": NaN'), "E-PLAN-FILE"),
        plan("Q3-plan-phases-unsorted", changed(PLAN, "schedule.p2", 1), "schedule.p2", "E-PLAN-FILE"),
        plan("Q3-plan-without-device-memory", changed(PLAN, "budget.device_bytes", 0),
             "budget.device_bytes: 0, expected at least 1 byte", "E-PLAN-FILE"),
        plan("Q3-plan-negative-batch", changed(PLAN, "workload.batch_size", -1), "workload.batch_size", "E-PLAN-FILE"),
        plan("Q3-plan-batch-is-no-integer", changed(PLAN, "workload.batch_size", 2.0), "workload.batch_size: 2.0",
             "E-PLAN-FILE"),
        Case("Q4-plan-missing", lambda folder: None, 4, extra=("--plan", "plan.json"), stderr=("E-IN-OPEN",)),
        plan("Q5-plan-and-profile", PLAN, "--plan", "--profile", "E-CLI-CONFLICT", exit=2, extra=("--profile", "t4")),
        plan("Q5-plan-with-another-policy", PLAN, "--policy vllm", "E-CLI-CONFLICT", exit=2, extra=("--policy", "vllm")),
        plan("Q5-plan-with-policy-options", PLAN, "--policy-option", "E-CLI-CONFLICT", exit=2,
             extra=("--policy-option", "p1=3")),
        *[Case(f"Q4-profile-{what}", link_to_itself, 4, extra=("--profile", path), stderr=(says, "E-IN-OPEN"))
          for what, path, says in (("loop", "loop", "Too many levels"), ("name", "n" * 300, "name too long"))],
        Case("Q5-strict-alone", lambda folder: None, 2, extra=("--plan-strict",), stderr=("E-CLI-CONFLICT",)),
        profile("Q1-profile-of-another-machine", PROFILE, "another CPU", "E-PLAN-MACHINE"),
        profile("Q1-profile-of-another-model", changed(PROFILE, "model.layers", 3), "layers 3", "E-PLAN-MODEL"),
        profile("Q1-profile-of-another-hidden-size", changed(PROFILE, "model.hidden_size", 32), "hidden size 32",
                "E-PLAN-MODEL"),
        profile("Q1-profile-of-another-kv-width", changed(PROFILE, "model.kv_width", 16), "KV width 16", "E-PLAN-MODEL"),
        profile("Q1-profile-of-another-ffn", changed(PROFILE, "model.ffn_size", 64), "FFN width of a token 64",
                "expected 24 of ", "E-PLAN-MODEL"),
        profile("Q2-profile-version", changed(PROFILE, "format", "triphase-profile/7"), "E-PLAN-PROFILE"),
        profile("Q2-profile-truncated", json.dumps(PROFILE).encode()[:-40], "E-PLAN-PROFILE"),
        profile("Q3-profile-unsorted", changed(PROFILE, "tables.h2d.bytes", [2, 1]), "tables.h2d.bytes[1]",
                "E-PLAN-PROFILE"),
        profile("Q3-profile-negative-time", changed(PROFILE, "tables.d2h.seconds", [1, -2]), "tables.d2h.seconds[1]",
                "E-PLAN-PROFILE"),
        profile("Q3-profile-without-time", changed(PROFILE, "tables.decode.seconds", [[0, 0], [0, 0]]),
                "tables.decode.seconds[0]: 0, expected at least 1e-09", "E-PLAN-PROFILE"),
        profile("Q3-profile-lacks-a-table", changed(PROFILE, "tables.gather", None), "tables.gather", "E-PLAN-PROFILE"),
        profile("Q3-profile-method-unsorted", {**PROFILE, "methods": [{**METHOD, "choosing": {**METHOD["choosing"], "batch": [2, 1]}}]},
                "methods[0].choosing.batch[1]", "E-PLAN-PROFILE"),
        profile("Q3-profile-method-lacks-its-table", {**PROFILE, "methods": [changed(METHOD, "choosing", None)]},
                "methods[0].choosing: missing", "E-PLAN-PROFILE"),
        profile("Q3-profile-methods-are-no-list", {**PROFILE, "methods": METHOD}, "methods: ", "an array of objects",
                "E-PLAN-PROFILE"),
        Case("Q6-profile-unknown-name", lambda folder: None, 4, extra=("--profile", "h300"),
             stderr=("h100-80gb", "E-PLAN-PROFILE")),
        profile("Q7-forced-profile-runs", PROFILE, exit=0, extra=("--plan-force",)),
    ]
