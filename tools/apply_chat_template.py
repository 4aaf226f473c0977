#!/usr/bin/env python3
"""Turns a file of chats into a file of prompts with the model's own chat template.

    apply_chat_template.py --model DIR chats.jsonl prompts.jsonl [--template FILE] [--no-generation-prompt]

Each input line is a JSON object with "messages" (a list of {"role", "content"}), or an OpenAI batch
line whose body has them; other fields are kept. In the output "messages" has become "prompt", and a
chat URL the completions URL. triphase itself never runs templates: they are programs that come with
the model. This script runs the template in jinja2's sandbox; needs jinja2 (pip install jinja2).

The template usually writes the model's first special token (BOS) itself. A tokenizer that adds one
too would double it, so a leading BOS text is cut from the prompt; --keep-bos leaves it.

Exit: 0, or 1 with one line on stderr naming the file and line. The output appears only when complete.
"""

import argparse
import json
import os
import sys
from datetime import datetime
from pathlib import Path

MAX_FILE = 64 << 20


class Refusal(Exception):
    """The one line that ends the script."""


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
        self.keep_bos = options.keep_bos

    def prompt(self, body: dict) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Refusal("messages: expected a list of objects with role and content")
        try:
            text = self.template.render(messages=messages, tools=body.get("tools"), documents=None,
                                        add_generation_prompt=self.generation_prompt, **self.tokens)
        except self.template_error as error:
            raise Refusal(f"chat template: {error}") from error
        except Exception as error:  # templates can fail in any way Python can
            raise Refusal(f"chat template: {type(error).__name__}: {error}") from error
        bos = self.tokens.get("bos_token", "")
        if bos and not self.keep_bos and text.startswith(bos):
            text = text[len(bos):]
        return text

    def line(self, text: str) -> str:
        try:
            request = json.loads(text)
        except ValueError as error:
            raise Refusal(f"not JSON: {error}") from error
        if not isinstance(request, dict):
            raise Refusal("expected a JSON object")
        body = request["body"] if isinstance(request.get("body"), dict) else request
        if "messages" in body:
            body["prompt"] = self.prompt(body)
            del body["messages"]
            if "max_completion_tokens" in body:  # the chat endpoint's newer name
                body.setdefault("max_tokens", body.pop("max_completion_tokens"))
            if request.get("url") == "/v1/chat/completions":
                request["url"] = "/v1/completions"
        return json.dumps(request, ensure_ascii=False)


def convert(options) -> int:
    converter = Converter(options)
    temporary = options.output.with_name(options.output.name + ".tmp")
    count = 0
    try:
        with open(options.input, encoding="utf-8-sig", newline="\n") as source, \
             open(temporary, "w", encoding="utf-8", newline="\n") as target:
            for number, text in enumerate(source, 1):
                if not text.strip():
                    target.write("\n")  # line numbers stay what they were
                    continue
                try:
                    target.write(converter.line(text) + "\n")
                except Refusal as refusal:
                    raise Refusal(f"{options.input}:{number}: {refusal}") from refusal
                count += 1
        os.replace(temporary, options.output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    parser.add_argument("--template", type=Path, help="use this template instead of the model's")
    parser.add_argument("--no-generation-prompt", action="store_true",
                        help="do not end with the start of the assistant's turn")
    parser.add_argument("--keep-bos", action="store_true", help="leave the template's own BOS text")
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    try:
        count = convert(options)
    except (Refusal, OSError, UnicodeDecodeError) as error:
        line = str(error).encode("unicode_escape", "replace").decode("ascii")
        print(f"apply_chat_template.py: error: {line}", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} prompts", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
