"""Hostile request files and command lines of `triphase score`: bad-inputs P, L and X rows again,
where scoring reads other fields. What all jobs share is in cases_prompts.py.
"""

import json

from bad_case import Case

SCORE = ("score", "--model", "MODEL", "--requests", "PROMPTS", "--output", "OUT")
GOOD = b'{"id": "good", "context_tokens": [1, 2], "continuation_tokens": [3]}\n'


def requests(*lines):
    def build(folder):
        written = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (folder / "prompts.jsonl").write_bytes(b"".join(line + b"\n" for line in written) + GOOD)
    return build


def one_bad(row, line, code, *texts, extra=()):
    """One line gets an error record with `code`, the good line after it is still scored."""
    return Case(row, requests(line), 1, args=SCORE, extra=extra, output=(f'"code":"{code}"', '"logprob":', *texts))


def deep(folder):
    requests(b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")(folder)


def cases():
    many = {"context_tokens": [1] * 40, "continuation_tokens": [2] * 40}
    return [
        one_bad("S1-not-json", b'{"context": "a"', "E-IN-JSON"),
        one_bad("S2-nan", b'{"context_tokens": [NaN], "continuation_tokens": [1]}', "E-IN-JSON"),
        one_bad("S3-no-continuation", {"id": "x", "context_tokens": [1]}, "E-IN-FIELD", '"id":"x"'),
        one_bad("S4-prompt-line", {"prompt": "a", "max_tokens": 2}, "E-IN-FIELD"),
        one_bad("S5-mixed-kinds", {"context": "a", "continuation_tokens": [1]}, "E-IN-FIELD"),
        one_bad("S6-both", {"text_tokens": [1], "context_tokens": [1]}, "E-IN-FIELD"),
        one_bad("S7-type", {"context_tokens": "a", "continuation_tokens": [1]}, "E-IN-TYPE"),
        one_bad("S8-array", [1, 2], "E-IN-TYPE"),
        one_bad("S9-negative-id", {"text_tokens": [-1]}, "E-IN-TOKEN"),
        one_bad("S10-id-beyond-vocabulary", {"text_tokens": [1, 32]}, "E-IN-TOKEN"),
        one_bad("S11-huge-id", {"text_tokens": [99999999999999999999]}, "E-IN-TOKEN"),
        one_bad("S12-empty-continuation", {"context_tokens": [1], "continuation_tokens": []}, "E-IN-EMPTY"),
        one_bad("S13-empty-text", {"text_tokens": []}, "E-IN-EMPTY"),
        one_bad("S14-no-tokenizer", {"context": "a", "continuation": "b"}, "E-TOK-NONE"),
        one_bad("S15-too-long", many, "E-IN-CONTEXT"),
        one_bad("S16-continuation-too-long", {"context_tokens": [1], "continuation_tokens": [2] * 70}, "E-IN-CONTEXT",
                extra=("--truncate=left",)),
        one_bad("S17-invalid-utf8", b'{"context": "\xff", "continuation": "a"}', "E-IN-UTF8"),
        one_bad("S18-duplicate-key", b'{"text_tokens": [1], "text_tokens": [2]}', "E-IN-JSON"),
        one_bad("S19-control-in-id", {"id": "a\x1b[2J", "text_tokens": [1]}, "E-IN-ID"),
        Case("S20-deep", deep, 1, args=SCORE, output=('"code":"E-IN-JSON"',)),
        Case("S21-truncated-on-request", requests(many), 0, args=SCORE, extra=("--truncate=left",)),
        Case("S22-strict", requests({"id": 1}), 4, args=SCORE, extra=("--strict",), stderr=("E-IN-STRICT",)),
        Case("S23-missing-file", lambda folder: (folder / "prompts.jsonl").unlink(), 4, args=SCORE,
             stderr=("E-IN-OPEN",)),
        Case("S24-no-requests-option", requests(), 2, args=("score", "--model", "MODEL", "--output", "OUT"),
             stderr=("--requests",)),
        Case("S25-run-option", requests(), 2, args=SCORE, extra=("--max-tokens=3",), stderr=("E-CLI-OPTION",)),
        Case("S26-truncate-right", requests(), 2, args=SCORE, extra=("--truncate=right",), stderr=("none or left",)),
        Case("S27-attention", requests(), 2, args=SCORE, extra=("--attention=squeezed",),
             stderr=("E-CLI-OPTION", "requests have none")),
        Case("S28-output-is-the-requests", requests(), 2,
             args=("score", "--model", "MODEL", "--requests", "PROMPTS", "--output", "PROMPTS"),
             stderr=("--requests",)),
        Case("S29-budget", requests(many), 5, args=SCORE, extra=("--device-memory=8K",), stderr=("E-MEM-FIT",)),
    ]
