"""A model that answers prompts, in the shape of vLLM's class of the same name."""

import json
import numbers
import os
import threading
import weakref
from typing import (Any, Callable, Dict, Generator, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple,
                    TypeVar, Union)

from triphase._program import FIXED_NAMES, FIXED_OPTIONS, AllSent, Child, check, command_line, find_program
from triphase._results import RequestOutput, ScoreOutput, request_output, score_output
from triphase._sampling import SamplingParams

# A text, token ids, or the fields of a prompt line (docs/prompts.md).
TokenIds = Union[List[int], Tuple[int, ...]]
Prompt = Union[str, TokenIds, Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]
# Context and continuation, a whole text, or the fields of a request line (docs/scoring.md).
ScoreRequest = Union[Tuple[str, str], Tuple[TokenIds, TokenIds], str, TokenIds, Mapping[str, Any]]
Params = Union[SamplingParams, Sequence[SamplingParams], None]
Answer = TypeVar("Answer")

# Options that only `triphase run` has, and that change no score. A plan may: it sets the type of KV.
GENERATION_OPTIONS = frozenset(("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop",
                                "seed", "logprobs", "ignore_eos", "generation_config", "profile", "plan_force",
                                "plan_strict", "recompute", "miss_rate", "predict", "trace", "emulate_link"))


def _is_token_ids(item: Any) -> bool:
    """Whole numbers, numpy's too. An empty list is no prompts, not an empty prompt."""
    return isinstance(item, (list, tuple)) and bool(item) and all(isinstance(token, numbers.Integral) for token in item)


def _prompt_fields(prompt: Prompt) -> Dict[str, Any]:
    if isinstance(prompt, Mapping):
        return dict(prompt)
    return {"prompt_token_ids" if isinstance(prompt, (list, tuple)) else "prompt": prompt}


def _score_fields(request: ScoreRequest) -> Dict[str, Any]:
    if isinstance(request, Mapping):
        return dict(request)
    if isinstance(request, str):
        return {"text": request}
    if isinstance(request, (list, tuple)) and len(request) == 2 and not _is_token_ids(request):
        suffix = "" if isinstance(request[0], str) else "_tokens"
        return {"context" + suffix: request[0], "continuation" + suffix: request[1]}
    return {"text_tokens": request}


def _merged(params: Optional[SamplingParams], fields: Dict[str, Any]) -> Dict[str, Any]:
    """What a prompt says itself wins, also under another name."""
    merged = {} if params is None else params.fields()
    if not fields.keys().isdisjoint(("max_new_tokens", "max_completion_tokens")):
        merged.pop("max_tokens", None)
    return {**merged, **fields}


def _lines(items: Iterable[Any], fields_of: Callable[[Any], Dict[str, Any]],
           params: Params) -> Iterator[Tuple[Any, Dict[str, Any]]]:
    """Each prompt with the fields of its line."""
    if params is None or isinstance(params, SamplingParams):
        return ((item, _merged(params, fields_of(item))) for item in items)
    if not isinstance(items, Sequence) or len(items) != len(params):
        raise ValueError(f"{len(params)} sampling_params, expected one, or a list of prompts and one for each")
    return ((item, _merged(own, fields_of(item))) for item, own in zip(items, params))


def _sorted(answers: Iterable[Any]) -> List[Any]:
    return sorted(answers, key=lambda answer: answer.index)


class _Running:
    """The child, if there is one. Apart from LLM, so that it can end with it."""

    def __init__(self) -> None:
        self.child: Optional[Child] = None
        self._command: List[str] = []
        self._lock = threading.RLock()  # threads may call at once: one starts a child, the others are refused

    def take(self, command: List[str]) -> Child:
        """The child that runs `command`, for one call: `busy` until the caller says otherwise."""
        with self._lock:
            if self.child is not None and self.child.busy:
                raise RuntimeError("an earlier call is not finished: read its iterator to the end, or close it")
            if self.child is None or self._command != command:
                self.stop()  # one model in memory at a time
                self.child = Child(command)
                self._command = command
            self.child.busy = True
            return self.child

    def stop(self, only: Optional[Child] = None) -> None:
        """Ends the child; with `only`, where it is that one still."""
        with self._lock:
            if only is not None and self.child is not only:
                return
            child, self.child = self.child, None
        if child is not None:
            child.stop()


class LLM:
    """A model, and the program that computes with it.

    model: a Hugging Face model directory.
    program: another `triphase` than the package's own.
    options: those of `triphase run`, with underscores: attention="sparq", device_memory="8GiB",
        attention_option={"sparq.rank": 32}, ignore_eos=True. `triphase run --help` lists them.

    Throws OptionError for an option that the program refuses, TriphaseError for a model that it cannot use. The
    model is loaded by the first call and stays loaded; score() after generate(), or the reverse, loads it anew.
    One call at a time: an iterator is read to its end, or closed, before the next call.
    """

    def __init__(self, model: Union[str, "os.PathLike[str]"], *,
                 program: Union[str, "os.PathLike[str]", None] = None, **options: Any) -> None:
        fixed = sorted(FIXED_NAMES & options.keys())
        if fixed:
            raise TypeError(f"LLM() sets {fixed[0]} itself; for a job of files run the program: triphase run --help")
        self._program = find_program(program)
        self._model = os.fspath(model)
        self._options = options
        self._running = _Running()
        self._finalizer = weakref.finalize(self, self._running.stop)
        check(self._command("run"))

    def generate(self, prompts: Union[Prompt, Iterable[Prompt]], sampling_params: Params = None) -> List[RequestOutput]:
        """Completes one prompt or several; the answers stand in the order of the prompts. A prompt that cannot be
        completed has an answer with `error`; the others run. Throws TriphaseError where the program ends."""
        return _sorted(self.generate_iter(prompts, sampling_params))

    def generate_iter(self, prompts: Union[Prompt, Iterable[Prompt]],
                      sampling_params: Params = None) -> Generator[RequestOutput, None, None]:
        """As generate(), but gives each answer as it arrives. `prompts` may be an iterator; it is read by another
        thread, as fast as the program takes prompts. Closing this generator stops the program."""
        alone = isinstance(prompts, (str, Mapping)) or _is_token_ids(prompts)
        listed: Any = [prompts] if alone else prompts
        return self._ask("run", _lines(listed, _prompt_fields, sampling_params), request_output)

    def chat(self, messages: Union[Messages, Iterable[Messages]], sampling_params: Params = None,
             **template: Any) -> List[RequestOutput]:
        """Answers one chat or several, by the model's own template. `template` are its variables: tools, documents,
        chat_template_kwargs. Answers and errors are those of generate()."""
        return _sorted(self.chat_iter(messages, sampling_params, **template))

    def chat_iter(self, messages: Union[Messages, Iterable[Messages]], sampling_params: Params = None,
                  **template: Any) -> Generator[RequestOutput, None, None]:
        """As chat(), but gives each answer as it arrives."""
        unknown = sorted(template.keys() - {"tools", "documents", "chat_template_kwargs"})
        if unknown:
            raise TypeError(f"chat() got {unknown[0]}, expected tools, documents or chat_template_kwargs")
        chats: Iterable[Any] = messages
        if isinstance(messages, Sequence) and messages and isinstance(messages[0], Mapping):
            chats = [messages]
        return self._ask("run", _lines(chats, lambda chat: {"messages": chat, **template}, sampling_params),
                         request_output)

    def score(self, requests: Union[ScoreRequest, Iterable[ScoreRequest]]) -> List[ScoreOutput]:
        """Log-likelihoods: of a continuation after a context for a pair of them, of a whole text for a text."""
        return _sorted(self.score_iter(requests))

    def score_iter(self, requests: Union[ScoreRequest, Iterable[ScoreRequest]]) -> Generator[ScoreOutput, None, None]:
        """As score(), but gives each answer as it arrives."""
        alone = isinstance(requests, (str, Mapping)) or _is_token_ids(requests) or (
            isinstance(requests, tuple) and len(requests) == 2 and
            all(isinstance(part, str) or _is_token_ids(part) for part in requests))
        listed: Any = [requests] if alone else requests
        return self._ask("score", _lines(listed, _score_fields, None), score_output)

    def close(self) -> None:
        """Ends the program and frees the model's memory; the next call starts it anew."""
        self._running.stop()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self, command: str) -> List[str]:
        options = self._options
        own = ["--prompts=-", "--input-format=jsonl"]
        if command == "score":
            options = {name: value for name, value in options.items() if name not in GENERATION_OPTIONS}
            own = ["--requests=-", "--token-logprobs"]
        return [self._program, command, f"--model={self._model}", *own, *FIXED_OPTIONS, *command_line(options)]

    def _ask(self, command: str, requests: Iterable[Tuple[Any, Dict[str, Any]]],
             answer: Callable[[int, Any, Dict[str, Any]], Answer]) -> Generator[Answer, None, None]:
        child = self._running.take(self._command(command))
        first = child.lines
        asked: Dict[int, Any] = {}
        received = 0
        total: Optional[int] = None
        try:
            child.send(requests, asked)
            while total is None or received < total:
                message = child.answers.get()
                if message is None:
                    raise child.ended()
                if isinstance(message, AllSent):
                    if message.error is not None:
                        raise message.error
                    total = message.count
                    continue
                record = json.loads(message)
                received += 1
                yield answer(record["index"] - first, asked.pop(record["index"]), record)
            child.busy = False
        finally:
            # What is still being computed is of no use to anybody.
            if child.busy:
                self._running.stop(child)
