"""Hostile prompt files, command lines and outputs left by earlier runs: bad-inputs P, L, X and R rows.

Faults that need more than one run or a signal are in tests/e2e; single lines in prompt_line_test.cpp.
"""

import gzip
import json
import os

from bad_case import Case, ModelFolder
from cases_model import link_to_itself

GOOD = b'{"id": "good", "prompt_tokens": [1, 2], "max_tokens": 2}\n'
RUN = ("run", "--model", "MODEL", "--prompts", "PROMPTS", "--output", "OUT")


def prompts(*lines):
    """A prompt file: the given lines, each bytes or an object, and a good line at the end."""
    def build(folder):
        written = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (folder / "prompts.jsonl").write_bytes(b"".join(line + b"\n" for line in written) + GOOD)
    return build


def raw(content):
    return lambda folder: (folder / "prompts.jsonl").write_bytes(content)


def nothing(_folder):
    pass


def template_not_utf8(folder):
    (folder / "model" / "chat_template.jinja").write_bytes(b"{{ messages }}\xff")


def one_bad(row, line, code, *texts, extra=()):
    """One line gets an error record with `code`, the good line after it still runs."""
    return Case(row, prompts(line), 1, extra=extra, output=(f'"code":"{code}"', '"good"', *texts))


def missing_prompts(folder):
    (folder / "prompts.jsonl").unlink()


def prompts_are_a_directory(folder):
    missing_prompts(folder)
    (folder / "prompts.jsonl").mkdir()


def prompts_are_a_socket(folder):
    import socket
    missing_prompts(folder)
    # The path of a socket is limited to about 100 bytes.
    here = os.getcwd()
    os.chdir(folder)
    try:
        socket.socket(socket.AF_UNIX).bind("prompts.jsonl")
    finally:
        os.chdir(here)


def long_line(folder):
    with open(folder / "prompts.jsonl", "wb") as file:
        file.write(b'{"prompt": "')
        for _ in range(80):
            file.write(b"a" * (1 << 20))
        file.write(b'"}\n' + GOOD)


def deep(depth):
    return b'{"prompt_tokens": [1], "unused": ' + b"[" * depth + b"]" * depth + b"}"


def prompt_cases():
    tokens = {"prompt_tokens": [1, 2], "max_tokens": 2}
    return [
        Case("P1-missing", missing_prompts, 4, ("E-IN-OPEN", "No such file")),
        Case("P1-directory", prompts_are_a_directory, 4, ("E-IN-OPEN", "a directory")),
        Case("P1-socket", prompts_are_a_socket, 4, ("E-IN-OPEN",)),
        Case("P2-empty", raw(b""), 0, records=0),
        Case("P2-blank", raw(b"\n \n\t\r\n"), 0, records=0),
        Case("P3-blank-lines", raw(b"\n\n" + GOOD + b"\n"), 0, records=1, output=('"index":2',)),
        Case("P4-crlf", raw(GOOD.replace(b"\n", b"\r\n") * 2), 1, records=2,
             output=("E-IN-DUPLICATE",)),
        Case("P5-bom", raw(b"\xef\xbb\xbf" + GOOD), 0, records=1),
        Case("P5-utf16", raw(GOOD.decode().encode("utf-16")), 4, ("E-IN-UTF16", "UTF-16")),
        Case("P5-utf16-no-mark", raw(GOOD.decode().encode("utf-16-le")), 4, ("E-IN-UTF16",)),
        Case("P5-gzip", raw(gzip.compress(GOOD)), 4, ("E-IN-OPEN", "gzip", "gunzip -c FILE | triphase ... -i -")),
        one_bad("P6-invalid-utf8", b'{"id": "x", "prompt": "a\xff"}', "E-IN-UTF8", '"id":"x"'),
        one_bad("P7-not-json", b"Once upon a time", "E-IN-JSON", "byte 1"),
        one_bad("P7-array", [1, 2], "E-IN-TYPE"),
        one_bad("P7-trailing", b'{"prompt_tokens": [1]} trailing', "E-IN-JSON"),
        one_bad("P7-control-bytes", b'{"prompt\x1b[2J": 1}', "E-IN-JSON"),
        Case("P7-strict", prompts(tokens, b"{"), 4, ("E-IN-STRICT", "prompts.jsonl:2:"),
             extra=("--strict",)),
        one_bad("P8-no-prompt", {"text": "a"}, "E-IN-FIELD", "prompt_token_ids"),
        one_bad("P9-number", {"prompt": 5}, "E-IN-TYPE"),
        one_bad("P9-mixed", {"prompt": [1, "a"]}, "E-IN-TOKEN", "prompt[1]"),
        Case("P10-empty-with-bos", prompts({"prompt_tokens": [], "max_tokens": 1}), 0),
        Case("P10-empty-without-bos", lambda folder: (
            ModelFolder(folder / "model").llama(bos_token_id=None),
            prompts({"prompt_tokens": [], "max_tokens": 1})(folder)), 1, output=('"code":"E-IN-EMPTY"', '"good"')),
        one_bad("P12-too-long", {"prompt_tokens": [1] * 100}, "E-IN-CONTEXT", "100", "64"),
        one_bad("P12-too-many-tokens", {"prompt_tokens": [1], "max_tokens": 64}, "E-IN-CONTEXT"),
        Case("P12-truncate", prompts({"prompt_tokens": [1] * 100, "max_tokens": 1}), 0,
             extra=("--truncate=left",)),
        Case("P14-long-line", long_line, 1, output=("E-IN-LONGLINE",)),
        Case("P15-no-newline", raw(GOOD[:-1]), 0, records=1),
        one_bad("P16-duplicate", {"id": "good", **tokens}, "E-IN-DUPLICATE", "line 1"),
        Case("P16-allowed", prompts({"id": "good", **tokens}), 0, extra=("--allow-duplicate-ids",)),
        one_bad("P17-wrong-type", {"id": ["a"], **tokens}, "E-IN-ID"),
        one_bad("P17-long", {"id": "a" * 513, **tokens}, "E-IN-ID"),
        one_bad("P17-control", {"id": "a\nb", **tokens}, "E-IN-ID"),
        one_bad("P18-deep", deep(5_000_000), "E-IN-JSON", "nesting deeper than 64"),
        Case("P18-shallow", prompts(deep(60)), 0),
        one_bad("P19-max-tokens-0", {**tokens, "max_tokens": 0}, "E-IN-PARAM"),
        one_bad("P19-max-tokens-huge", {**tokens, "max_tokens": 10**12}, "E-IN-PARAM"),
        one_bad("P19-temperature", {**tokens, "temperature": -1}, "E-IN-PARAM"),
        one_bad("P19-top-p", {**tokens, "top_p": 0}, "E-IN-PARAM"),
        one_bad("P19-stop", {**tokens, "stop": ["x"] * 10_000}, "E-IN-PARAM"),
        one_bad("P19-n", {**tokens, "n": 10**6}, "E-IN-PARAM"),
        one_bad("P20-negative", {"prompt_tokens": [1, -1]}, "E-IN-TOKEN", "prompt_tokens[1]"),
        one_bad("P20-beyond-vocab", {"prompt_tokens": [1, 32]}, "E-IN-TOKEN", "32"),
        one_bad("P20-float", {"prompt_tokens": [1.5]}, "E-IN-TOKEN"),
        one_bad("P20-huge", {"prompt_tokens": [2**31]}, "E-IN-TOKEN"),
        one_bad("P24-surrogate", b'{"prompt": "\\ud800"}', "E-IN-JSON"),
        one_bad("T1-text-without-tokenizer", {"prompt": "Once"}, "E-TOK-NONE"),
        one_bad("T19-chat-without-template", {"messages": [{"role": "user", "content": "hi"}]}, "E-IN-CHAT",
                "as chat_template.jinja"),
        Case("T19-template-not-utf-8", template_not_utf8, 3, ("chat_template.jinja", "byte 0xff", "E-TOK-FILE")),
        one_bad("T19-messages", {"messages": ["hi"]}, "E-IN-TYPE", "messages[0]"),
        Case("openai-batch",
             raw(b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": '
                 b'{"model": "m", "prompt": [1, 2], "max_tokens": 2}}\n{\n'), 1,
             output=('"custom_id":"a"', '"status_code":200', '"status_code":400')),
        Case("ids-format", raw(b"[1, 2, 3]\n[4]\n"), 0,
             extra=("--input-format=ids", "--max-tokens=2")),
    ]


def line_cases():
    def misuse(row, code, *texts, extra):
        return Case(row, nothing, 2, (code, *texts), extra=extra)

    return [
        misuse("L1-unknown", "E-CLI-OPTION", "did you mean --max-tokens", extra=("--max-token", "4")),
        misuse("L1-no-value", "E-CLI-OPTION", extra=("--seed",)),
        misuse("L1-twice", "E-CLI-OPTION", "once", extra=("--seed=1", "--seed=2")),
        misuse("L2-negative", "E-CLI-OPTION", "-1", extra=("--batch-size", "-1")),
        misuse("L3-nan", "E-CLI-OPTION", "nan", extra=("--temperature=nan",)),
        misuse("L4-stray", "E-CLI-OPTION", extra=("stray",)),
        misuse("L5-prefix", "E-CLI-OPTION", "--batch-size", extra=("--batch", "4")),
        *[misuse(f"L6-size-{text}", "E-CLI-OPTION", "a size with a unit",
                 extra=(f"--device-memory={text}",)) for text in ("16g", "-1G", "1e3", "0x10", "16")],
        misuse("L8-contradiction", "E-CLI-CONFLICT", "--retry-failed",
               extra=("--overwrite", "--retry-failed")),
        Case("L10-help", nothing, 0, stdout=("Usage: triphase run",), args=("run", "--help", "--junk")),
        Case("L10-version", nothing, 0, stdout=("commit:",), args=("--version",)),
        Case("L10-completion", nothing, 0, stdout=("complete -F",), args=("--completion", "bash")),
        Case("L12-control-bytes", nothing, 4, ("E-IN-OPEN", "a\\nb\\x1b[2J\\xff"),
             args=("run", "--model", "MODEL", "--output", "OUT", "--prompts",
                   b"a\nb\x1b[2J\xff".decode("utf-8", "surrogateescape"))),
        Case("L13-output-is-input", nothing, 2, ("E-CLI-OUTPUT", "the same file"),
             args=("run", "--model", "MODEL", "--prompts", "PROMPTS", "--output", "PROMPTS")),
        Case("arguments-without-options", nothing, 2, ("E-CLI-OPTION", "dir, an argument without an option"),
             args=("run", "dir", "prompts.jsonl")),
        Case("command-of-servers", nothing, 2, ("E-CLI-COMMAND", "there is no server"), args=("serve",)),
        Case("command-of-others", nothing, 2, ("E-CLI-COMMAND", "did you mean run"), args=("generate",)),
        Case("command-unknown", nothing, 2, ("E-CLI-COMMAND", "did you mean run"), args=("rum",)),
        Case("R1-no-such-gpu", nothing, 5, ("E-DEV-NONE",), extra=("--device=cuda:77",)),
        Case("device-unknown", nothing, 2, ("auto, cpu or cuda:N",), extra=("--device=gpu",)),
        Case("kv-int8-block", nothing, 2, ("a multiple of 16",), extra=("--kv-dtype=int8", "--kv-block=10")),
        Case("kv-int4", nothing, 2, ("int8",), extra=("--kv-dtype=int4",)),
        Case("doctor-error", nothing, 0, stdout=("git lfs pull",),
             args=("doctor", "--error", "E-ST-LFS")),
        Case("doctor-error-unknown", nothing, 2, ("E-CLI-OPTION",),
             args=("doctor", "--error", "E-NO-SUCH")),
    ]


def beside_output(name, content):
    def build(folder):
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out" / name).write_bytes(content)
    return build


def output_is_a_directory(folder):
    (folder / "directory").mkdir()


def output_cases():
    record = b'{"index":0,"tokens":[1],"finish_reason":"length","usage":{}}\n'
    out = ("run", "--model", "MODEL", "--prompts", "PROMPTS", "--output")
    return [
        Case("R11-output-missing-folder", nothing, 6, ("E-IO-OPEN",), args=(*out, "missing/out.jsonl")),
        Case("R11-output-is-directory", output_is_a_directory, 2, ("E-CLI-OUTPUT", "a directory"),
             args=(*out, "directory")),
        *[Case(f"R11-{command}-output-{what}", link_to_itself, 6, (says, "E-IO-OPEN"), absent=("measuring",), args=(
            command, "--model", "MODEL", *more, "--output", path))
          for what, path, says in (("loop", "loop/out", "Too many levels"), ("name", "n" * 300, "name too long"),
                                   ("name-of-a-temporary", "n" * 250, "name too long"))
          for command, more in (("run", ("--prompts", "PROMPTS")), ("compare", ("--prompts", "PROMPTS")), ("profile", ()))
          if command != "compare" or what != "name-of-a-temporary"],
        Case("R11-output-is-device", nothing, 2, ("E-CLI-OUTPUT",), args=(*out, "/dev/full")),
        Case("X8-part-without-manifest", beside_output("out.jsonl.part", record), 4,
             ("E-IN-RESUME", "--overwrite"), leaves_output=True),
        Case("X8-part-overwritten", beside_output("out.jsonl.part", record), 0,
             extra=("--overwrite",)),
        Case("X8-manifest-damaged",
             lambda folder: (beside_output("out.jsonl.part", record)(folder),
                             beside_output("out.jsonl.manifest.json", b"{")(folder)), 4,
             ("E-IN-MANIFEST",), leaves_output=True),
        Case("X9-require-without-earlier-run", nothing, 4, ("E-IN-RESUME", "no earlier run"),
             extra=("--resume=require",)),
        Case("R2-too-little-memory", nothing, 5, ("E-MEM-FIT",), extra=("--device-memory=1K",)),
        Case("merge-nothing", nothing, 2, ("E-CLI-OPTION", "SHARD"), args=("merge", "--output", "OUT")),
        Case("merge-missing", nothing, 4, ("E-IN-OPEN",), args=("merge", "no", "--output", "OUT")),
    ]


def cases():
    return prompt_cases() + line_cases() + output_cases()
