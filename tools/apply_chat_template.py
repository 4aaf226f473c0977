#!/usr/bin/env python3
"""Turns a file of chats into a file of prompts with the model's own chat template.

    apply_chat_template.py --model DIR chats.jsonl prompts.jsonl [--template FILE] [--no-generation-prompt]
    apply_chat_template.py --model DIR - - <chats.jsonl | triphase run --model DIR --prompts - --output out.jsonl

Each input line is a JSON object with "messages" (a list of {"role", "content"}), or an OpenAI batch
line whose body has them; "chat_template_kwargs" are variables for the template, other fields are kept.
In the output "messages" has become "prompt", and a chat URL the completions URL. triphase itself never
runs templates: they are programs that come with the model. This script runs the template in jinja2's
sandbox; needs jinja2 (pip install jinja2). "-" reads stdin, or writes stdout.

The template writes what its model wants in front, its first special token (BOS) too where it has one.
So the prompts say "add_special_tokens": false, and the tokenizer adds no other.

A line that cannot be converted becomes {"error": ...} in its place, with its id, and stderr names it;
triphase run makes an error record of it. Exit: 0; 1 where there are such lines; 2 with one line on
stderr where there is no output at all. The output appears only when complete.
"""

import argparse
import contextlib
import json
import os
import sys
from datetime import datetime
from pathlib import Path

MAX_FILE = 64 << 20


SHOWN_ERRORS = 10


class Refusal(Exception):
    """What is wrong, in one line: with a line of the input, or with everything."""


def read_json(path: Path):
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_FILE:
        raise Refusal(f"{path}: larger than {MAX_FILE} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refusal(f"{path}: {error}") from error


def template_text(model: Path, chosen: Path | None) -> str:
    """chat_template.jinja, then tokenizer_config.json, as transformers looks for them."""
    if chosen is not None:
        return chosen.read_text(encoding="utf-8")
    separate = model / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    template = (read_json(model / "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):  # several templates by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise Refusal(f"{model}: no chat template (chat_template.jinja, or chat_template in "
                      "tokenizer_config.json); give one with --template")
    return template


def special_tokens(model: Path) -> dict[str, str]:
    tokens = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in (read_json(model / name) or {}).items():
            if isinstance(value, dict):
                value = value.get("content")
            if key.endswith("_token") and isinstance(value, str):
                tokens[key] = value
    return tokens


def compile_template(text: str):
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise Refusal("jinja2 is missing, and chat templates are written for it; "
                      "hint: pip install jinja2") from None

    def raise_exception(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text), TemplateError
    except TemplateError as error:
        raise Refusal(f"chat template: {error}") from error


class Converter:
    def __init__(self, options):
        self.template, self.template_error = compile_template(template_text(options.model, options.template))
        self.tokens = special_tokens(options.model)
        self.generation_prompt = not options.no_generation_prompt

    def prompt(self, body: dict) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Refusal("messages: expected a list of objects with role and content")
        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, dict):
            raise Refusal("chat_template_kwargs: expected an object")
        variables = {"messages": messages, "tools": body.get("tools"), "documents": None,
                     "add_generation_prompt": self.generation_prompt, **self.tokens, **more}
        try:
            return self.template.render(variables)
        except self.template_error as error:
            raise Refusal(f"chat template: {error}") from error
        except Exception as error:  # templates can fail in any way Python can
            raise Refusal(f"chat template: {type(error).__name__}: {error}") from error

    def convert(self, request: dict) -> bytes:
        body = request["body"] if isinstance(request.get("body"), dict) else request
        if "messages" in body:
            body["prompt"] = self.prompt(body)
            for done in ("messages", "chat_template_kwargs"):
                body.pop(done, None)
            body.setdefault("add_special_tokens", False)
            if "max_completion_tokens" in body:  # the chat endpoint's newer name
                body.setdefault("max_tokens", body.pop("max_completion_tokens"))
            if request.get("url") == "/v1/chat/completions":
                request["url"] = "/v1/completions"
        try:
            return json.dumps(request, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise Refusal("half of a surrogate pair, expected whole characters") from error

    def line(self, text: bytes) -> tuple[bytes, str | None]:
        """The output's line, and what is wrong with the input's."""
        request = {}
        try:
            try:
                request = json.loads(text.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise Refusal(f"not JSON: {error}") from error
            if not isinstance(request, dict):
                raise Refusal("expected a JSON object")
            return self.convert(request), None
        except Refusal as refusal:
            problem = str(refusal)
        kept = {key: request[key] for key in ("id", "custom_id") if isinstance(request, dict) and key in request}
        # Whatever else it holds, it is ASCII.
        error = {"code": "E-IN-CHAT", "message": problem}
        return json.dumps(kept | {"error": error}).encode("ascii"), problem


@contextlib.contextmanager
def opened_output(path: Path):
    """A file that appears when it is complete; stdout as it comes."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as target:
            yield target
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def say(text: str) -> None:
    escaped = text.encode("unicode_escape", "replace").decode("ascii")
    print(f"apply_chat_template.py: {escaped}", file=sys.stderr)


def convert(options) -> tuple[int, int]:
    """How many prompts were written, and how many lines were not converted."""
    converter = Converter(options)
    stdin = str(options.input) == "-"
    name = "stdin" if stdin else options.input
    prompts = bad = 0
    with contextlib.ExitStack() as stack:
        source = sys.stdin.buffer if stdin else stack.enter_context(open(options.input, "rb"))
        target = stack.enter_context(opened_output(options.output))
        for number, text in enumerate(source, 1):
            text = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
            if not text.strip():
                target.write(b"\n")  # line numbers stay what they were
                continue
            line, problem = converter.line(text)
            target.write(line + b"\n")
            prompts += problem is None
            if problem is not None:
                bad += 1
                if bad <= SHOWN_ERRORS:
                    say(f"{name}:{number}: {problem}")
    return prompts, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    parser.add_argument("--template", type=Path, help="use this template instead of the model's")
    parser.add_argument("--no-generation-prompt", action="store_true",
                        help="do not end with the start of the assistant's turn")
    parser.add_argument("input", type=Path, help="- for stdin")
    parser.add_argument("output", type=Path, help="- for stdout")
    options = parser.parse_args()
    try:
        prompts, bad = convert(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        return 2
    except (Refusal, OSError, UnicodeDecodeError) as error:
        say(f"error: {error}")
        return 2
    say(f"{'stdout' if str(options.output) == '-' else options.output}: {prompts} prompts" +
        (f", {bad} lines could not be converted" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
