#!/usr/bin/env python3
"""Turns a file of chats into a file of prompts with the model's own chat template.

    apply_chat_template.py --model DIR chats.jsonl prompts.jsonl [--template FILE] [--no-generation-prompt]
    apply_chat_template.py --model DIR - - <chats.jsonl | triphase run --model DIR --prompts - --output out.jsonl

Each input line is a JSON object with "messages" (a list of {"role", "content"}), or an OpenAI batch
line whose body has them; "chat_template_kwargs" are variables for the template, other fields are kept.
In the output "messages" has become "prompt", and a chat URL the completions URL. Templates are programs
that come with the model: they run in jinja2's sandbox; needs jinja2 (pip install jinja2). "-" reads
stdin, or writes stdout. triphase run starts this script itself for lines with messages; by hand it is
for other templates, and for machines without Python.

The template writes what its model wants in front, its first special token (BOS) too where it has one.
So the prompts say "add_special_tokens": false, and the tokenizer adds no other.

A line that cannot be converted becomes {"error": ...} in its place, with its id, and stderr names it. Line
numbers so stay the same; triphase run refuses it as a line without a prompt (E-IN-FIELD). Exit: 0; 1 where
there are such lines; 2 with one line on stderr where there is no output at all. The output appears only
when complete.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

MAX_FILE = 64 << 20
SHOWN_ERRORS = 10
MEDIA = ("image", "audio", "video", "file")  # kinds of parts that are not text
# Tokens that transformers' classes have where no file names them.
CLASS_TOKENS = {
    name: {f"{role}_token": token for role, token in zip(("bos", "eos", "unk", "pad", "mask", "cls", "sep"), tokens)
           if token is not None}
    for name, tokens in {
        "LlamaTokenizer": ("<s>", "</s>", "<unk>"),
        "CodeLlamaTokenizer": ("<s>", "</s>", "<unk>"),
        "GemmaTokenizer": ("<bos>", "<eos>", "<unk>", "<pad>", "<mask>"),
        "CohereTokenizer": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<PAD>", "<MASK_TOKEN>", "<CLS>", "<SEP>"),
        "Qwen2Tokenizer": (None, *["<|endoftext|>"] * 3),
        "GPT2Tokenizer": ["<|endoftext|>"] * 3,
        "GPTNeoXTokenizer": (*["<|endoftext|>"] * 3, "<|padding|>")}.items()}
PROBE = '{"PROBE":1e0}'
REASONING = ("reasoning_content", "thinking", "reasoning")


class Refusal(Exception):
    """What is wrong, in one line: with a line of the input, or with everything."""


class MissingLibrary(Refusal):
    """jinja2 is not installed."""


class Model:
    """The model's files by name: those of a folder, or texts that triphase has read."""

    def __init__(self, folder: Path | None = None, texts: dict[str, str] | None = None):
        self.folder, self.texts = folder, texts or {}

    def text(self, name: str) -> str | None:
        if self.folder is None:
            return self.texts.get(name)
        path = self.folder / name
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_FILE:
            raise Refusal(f"{path}: larger than {MAX_FILE} bytes")
        return path.read_text(encoding="utf-8-sig")

    def __str__(self) -> str:
        return "the model" if self.folder is None else str(self.folder)


def read_json(model: Model, name: str) -> dict:
    """Empty where the file is missing."""
    text = model.text(name)
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{model}: {name}: {error}") from error
    if not isinstance(content, dict):
        raise Refusal(f"{model}: {name}: expected a JSON object")
    return content


def template_texts(model: Model) -> tuple[str, str]:
    """The template, and the one for chats with tools. As in transformers, files of templates replace what
    tokenizer_config.json has."""
    files = {"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}
    named = {name: text for name, file in files.items() if (text := model.text(file)) is not None}
    if not named:
        given = read_json(model, "tokenizer_config.json").get("chat_template")
        if isinstance(given, list):
            named = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
        else:
            named = {"default": given}
    template = named.get("default")
    tool_use = named.get("tool_use", template)
    if not isinstance(template, str) or not isinstance(tool_use, str):
        raise Refusal(f"{model}: no chat template (chat_template.jinja, or chat_template in "
                      "tokenizer_config.json); hint: put one there as chat_template.jinja, or give --template FILE")
    return template, tool_use


def special_tokens(model: Model) -> dict[str, str]:
    config = read_json(model, "tokenizer_config.json")
    named = CLASS_TOKENS.get(str(config.get("tokenizer_class")).removesuffix("Fast"), {})
    tokens = {key: token for key, token in named.items() if key not in config}  # null is none
    files = [read_json(model, "special_tokens_map.json"), config]
    if config.get("added_tokens_decoder") is None:
        files.reverse()  # the map is older than that, and wins where it is missing
    for values in files:
        for key, value in values.items():
            if isinstance(value, dict):
                value = value.get("content")
            if key.endswith("_token") and isinstance(value, str):
                tokens[key] = value
    return tokens


def compile_template(text: str, now: datetime | None):
    """The template and the exception of its own errors. `now`: what it takes for the time."""
    try:
        from jinja2 import nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingLibrary("jinja2 is missing, and chat templates are written for it; "
                             "hint: pip install jinja2") from None

    class Generation(Extension):
        """{% generation %} marks what the assistant said, for training; the text stays as it is."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
    try:
        return environment.from_string(text), TemplateError
    except TemplateError as error:
        raise Refusal(f"chat template: {error}") from error
    except Exception as error:  # a template can be nested too deep for Python's own compiler
        raise Refusal(f"chat template: {type(error).__name__}: {error}") from error


def check_media(message: dict) -> None:
    """A template would name a picture in the prompt, and nobody would look at it."""
    content = message.get("content")
    for part in content if isinstance(content, list) else []:
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        if kind.removeprefix("input_").startswith(MEDIA):
            raise Refusal(f"messages: a part of type {kind}, expected text; hint: only text is read")


def joined(content):
    """A list of texts alone as one text, a line each."""
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str)
                                         for part in content):
        return "\n".join(part["text"] for part in content)
    return content


def named_reasoning(message: dict) -> dict:
    """What the assistant thought under each name that templates read, as transformers has it."""
    thought = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if thought is None:
        return message
    return {"thinking": thought, **message, "reasoning_content": thought}


def with_arguments(message: dict, change) -> dict:
    """The message with what change() makes of the arguments of each tool call."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("arguments") is not None:
            call = {**call, "function": {**function, "arguments": change(function["arguments"])}}
        changed.append(call)
    return {**message, "tool_calls": changed}


def as_object(arguments):
    """As most templates want them."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(arguments)
            return parsed if isinstance(parsed, dict) else arguments
    return arguments


def as_text(arguments):
    """As the OpenAI API has them."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def as_given(arguments):
    return arguments


def as_probe(arguments):
    """No template writes a number so that is not given the text."""
    return PROBE if as_object(arguments) is not arguments else arguments


def forms_of(messages: list[dict], shows_text):
    """The chat as transformers hands it to templates, then as templates of other times and makers want it.
    The first form that the template takes is the chat. `shows_text`: whether it writes a text of arguments as it
    is, asked with the form as a probe."""
    plain = [named_reasoning({key: value for key, value in message.items() if value is not None})
             for message in messages]
    with_nulls = [{"content": None, **message} for message in plain]
    with_texts = [{"content": "", **message} for message in plain]
    forms: list[list[dict]] = []
    for form in (plain, with_nulls, with_texts):
        probe = [with_arguments(message, as_probe) for message in form]
        given = (as_given,) if probe != form and shows_text(probe) else ()
        for change in (*given, as_object, as_text):
            variant = [with_arguments(message, change) for message in form]
            if variant not in forms:
                forms.append(variant)
                yield variant


class Template:
    def __init__(self, text: str, now: datetime | None):
        self.template, self.error = compile_template(text, now)
        self.known_to_read_parts: bool | None = None

    def render(self, variables: dict) -> str:
        try:
            return self.template.render(variables)
        except self.error as error:
            raise Refusal(f"chat template: {error}") from error
        except Exception as error:  # templates can fail in any way Python can
            raise Refusal(f"chat template: {type(error).__name__}: {error}") from error

    def reads_parts(self, variables: dict) -> bool:
        """Whether a list of parts becomes their text. Many templates print the list as Python would."""
        if self.known_to_read_parts is None:
            probe = [{"role": "user", "content": [{"type": "text", "text": "PROBE"}]}]
            try:
                shown = self.render({**variables, "messages": probe})
            except Refusal:
                shown = ""
            self.known_to_read_parts = "PROBE" in shown and "{'type'" not in shown and '{"type"' not in shown
        return self.known_to_read_parts

    def shows_text(self, variables: dict) -> bool:
        """Whether a text of arguments is written as it is. Many templates make JSON of it once more. Asked of each
        chat: what another one shows must not change its prompt."""
        try:
            return PROBE in self.render(variables)
        except Refusal:
            return False


class Converter:
    def __init__(self, model: Model, texts: tuple[str, str], generation_prompt: bool,
                 now: datetime | None):
        self.plain = Template(texts[0], now)
        self.tool_use = self.plain if texts[1] == texts[0] else Template(texts[1], now)
        self.tokens = special_tokens(model)
        self.generation_prompt = generation_prompt

    def prompt(self, body: dict) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise Refusal("messages: expected a list of objects with role and content")
        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, dict):
            raise Refusal("chat_template_kwargs: expected an object")
        variables = {"tools": body.get("tools"), "documents": body.get("documents"),
                     "add_generation_prompt": self.generation_prompt, **self.tokens, **more}
        template = self.plain if body.get("tools") is None else self.tool_use
        for message in messages:
            check_media(message)
        parts = any(isinstance(message.get("content"), list) for message in messages)
        if parts and not template.reads_parts(variables):
            messages = [{**message, "content": joined(message.get("content"))} for message in messages]
        problem = None
        for form in forms_of(messages, lambda probe: template.shows_text({**variables, "messages": probe})):
            try:
                return template.render({**variables, "messages": form})
            except Refusal as refusal:
                problem = problem or refusal
        raise problem

    def convert(self, request: dict) -> bytes:
        body = request["body"] if isinstance(request.get("body"), dict) else request
        if "messages" in body:
            body["prompt"] = self.prompt(body)
            for done in ("messages", "chat_template_kwargs"):
                body.pop(done, None)
            body.setdefault("add_special_tokens", False)
            logprobs, alternatives = body.pop("logprobs", None), body.pop("top_logprobs", None)
            if logprobs is True:  # prompts have the number of alternatives there
                body["logprobs"] = alternatives or 0
            elif logprobs is not None and logprobs is not False:
                body["logprobs"] = logprobs
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
    if not options.model.is_dir():
        raise Refusal(f"--model: {options.model}, expected a folder; hint: one as huggingface.co has them")
    model = Model(options.model)
    texts = (options.template.read_text(encoding="utf-8-sig"),) * 2 if options.template else template_texts(model)
    converter = Converter(model, texts, not options.no_generation_prompt, None)
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


def answer(**fields) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


def served_prompt(converter: Converter, line: bytes, most_bytes: int) -> str:
    try:
        prompt = converter.prompt(json.loads(line))
        size = len(prompt.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refusal("half of a surrogate pair, expected whole characters") from error
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(f"chat template: {type(error).__name__}: {error}") from error
    if size > most_bytes:
        raise Refusal(f"the chat template made {size} bytes, expected at most {most_bytes}")
    return prompt


def serve() -> int:
    """For triphase: a line of JSON in, a line of JSON out. The first is the model, each other a chat."""
    source = sys.stdin.buffer
    setup = json.loads(source.readline())
    model = Model(texts=setup["files"])
    try:
        now = datetime.fromtimestamp(setup["now"], timezone.utc)
        converter = Converter(model, template_texts(model), True, now)
    except MissingLibrary:
        answer(missing="jinja2")
        return 2
    except Refusal as refusal:
        answer(error=str(refusal))
        return 2
    answer(ready=True)
    for line in source:
        try:
            answer(prompt=served_prompt(converter, line, setup["most_bytes"]))
        except Refusal as refusal:
            answer(error=str(refusal)[:1000])
    return 0


def main() -> int:
    if sys.argv[1:] == ["--serve"]:
        return serve()
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
