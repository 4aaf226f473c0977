"""Hostile fixed contexts given to `triphase run`, and hostile texts given to `triphase cluster`.

An artefact is refused by what its JSON says before its model is compared, and by its model before its numbers
are read; damaged numbers are in tests/unit/engine/fixed_context_test.cpp.
"""

import json

from bad_case import Case
from cases_model import changed as changed_tensors
from cases_model import poison
from cases_plan import changed

FACTS = {
    "format": "triphase-clusters/1",
    "program": {"version": "0", "commit": "none"},
    "model": {"fingerprint": "xxh3:0000000000000000", "tokenizer": "", "layers": 2, "heads": 2, "kv_heads": 1,
              "head_dim": 8},
    "context": {"text_hash": "xxh3:0", "tokens": 40, "clustered_tokens": 30},
    "options": {"centroids": 0.1, "coarse_centroids": 0.05, "levels": 1, "window": 10, "calibrate": "full", "seed": 0,
                "max_iterations": 300},
    "fine": {"clusters": 3, "threshold": 0.01, "quantile": 0.9},
    "coarse": None,
    "calibration": {"queries": 10, "kept_share": 0.1, "kept_share_levels2": None, "looked_up_share": None},
    "data": {"bytes": 100, "hash": "xxh3:0"},
}


def facts(row, content, *texts):
    def build(folder):
        (folder / "clusters").mkdir()
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / "clusters" / "clusters.json").write_bytes(text)

    return Case(row, build, 4, extra=("--fixed-context", "clusters"), stderr=(*texts, "E-IN-CLUSTERS"))


def nan_keys(folder):
    (folder / "context").write_text(json.dumps([3] * 40))
    changed_tensors(lambda tensors: poison(tensors, layer=0))(folder)


def context(row, content, *texts, exit=4, extra=()):
    def build(folder):
        (folder / "context").write_bytes(content)

    return Case(row, build, exit, stderr=texts,
                args=("cluster", "--model", "MODEL", "--context", "context", "--output", "OUT", *extra))


def cases():
    whole = json.dumps(FACTS).encode()
    ids = ("--context-format", "ids", "--window", "10")
    return [
        Case("K1-no-such-directory", lambda folder: None, 4, extra=("--fixed-context", "clusters"),
             stderr=("nothing there", "E-IN-CLUSTERS")),
        Case("K1-a-file", lambda folder: (folder / "clusters").write_text("x"), 4,
             extra=("--fixed-context", "clusters"), stderr=("not a directory", "E-IN-CLUSTERS")),
        Case("K1-an-empty-directory", lambda folder: (folder / "clusters").mkdir(), 4,
             extra=("--fixed-context", "clusters"), stderr=("clusters: directory: one without clusters.json, expected", "E-IN-CLUSTERS")),
        facts("K2-of-another-model", FACTS, "model.fingerprint: xxh3:0000000000000000"),
        facts("K3-empty", b""),
        facts("K3-truncated", whole[:200]),
        facts("K3-not-json", b"\x00\xff\x1b[2J"),
        facts("K3-another-version", changed(FACTS, "format", "triphase-clusters/2"), "triphase-clusters/2"),
        facts("K3-lacks-a-field", changed(FACTS, "context.tokens", None), "context.tokens: missing"),
        facts("K3-unknown-field", changed(FACTS, "options.gamma", 1), "options.gamma"),
        facts("K4-nan-threshold", whole.replace(b'"threshold": 0.01', b'"threshold": NaN')),
        facts("K4-threshold", changed(FACTS, "fine.threshold", -0.5), "fine.threshold: -0.5"),
        facts("K4-clusters", changed(FACTS, "fine.clusters", 31), "fine.clusters: 31"),
        facts("K4-tokens", changed(FACTS, "context.tokens", 10**30), "E-IN-CLUSTERS"),
        facts("K4-window", changed(FACTS, "options.window", 39), "clustered_tokens"),
        facts("K4-levels", changed(FACTS, "options.levels", 2), "coarse"),
        Case("K5-squeezed-alone", lambda folder: None, 2, extra=("--attention", "squeezed"),
             stderr=("--fixed-context", "E-CLI-CONFLICT")),
        context("K6-text-without-tokenizer", b"text", "E-TOK-NONE", exit=3),
        context("K6-no-ids", b"{}", "an array of token ids", "E-IN-FIXED", extra=ids),
        context("K6-not-json", b"[1, 2", "E-IN-FIXED", extra=ids),
        context("K6-id-out-of-range", b"[1, 32]", "[1]: 32", "E-IN-FIXED", extra=ids),
        context("K6-id-is-text", b'[1, "2"]', "E-IN-FIXED", extra=ids),
        context("K6-too-short", b"[1, 2, 3]", "--window", "E-IN-FIXED", extra=ids),
        context("K6-too-long", json.dumps([3] * 63).encode(), "at most 62", "E-IN-FIXED", extra=ids),
        context("K6-int8-keys", json.dumps([3] * 40).encode(), "--kv-dtype", exit=2, extra=(*ids, "--kv-dtype", "int8")),
        Case("K6-no-context", lambda folder: None, 4, stderr=("E-IN-OPEN",),
             args=("cluster", "--model", "MODEL", "--context", "none", "--output", "OUT")),
        Case("K6-nan-keys", nan_keys, 3, stderr=("keys of layer 1", "E-NUM-KEYS"),
             args=("cluster", "--model", "MODEL", "--context", "context", "--output", "OUT", *ids, "--check-weights=off")),
        Case("K7-output-is-a-file", lambda folder: (folder / "context").write_text(json.dumps([3] * 40)), 6,
             args=("cluster", "--model", "MODEL", "--context", "context", "--output", "context", *ids),
             stderr=("E-IO-OPEN",)),
    ]
