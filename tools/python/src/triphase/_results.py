"""What comes back for a prompt or for a request to score."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class RequestError:
    """Why one request failed: a stable code (docs/errors.md) and what was wrong."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


@dataclass(frozen=True)
class Logprob:
    """A token's natural log-probability."""

    logprob: float


@dataclass(frozen=True)
class CompletionOutput:
    """A completion.

    text: what it adds to the prompt's text; prompt and text together read on.
    finish_reason: "stop" (end of sequence or a stop text) or "length".
    reasoning: what a chat's model thought before, where it answers in channels (gpt-oss); text is the rest.
    logprobs: for each of token_ids the drawn token and the asked number of likeliest ones, by token id.
    """

    index: int
    text: str
    token_ids: List[int]
    finish_reason: str
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    reasoning: Optional[str] = None


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one prompt.

    index: the prompt's place among those of the call.
    prompt: the prompt as it was given.
    outputs: one completion; none where `error` says why the prompt failed.
    """

    index: int
    prompt: Any
    outputs: List[CompletionOutput] = field(default_factory=list)
    num_prompt_tokens: int = 0
    error: Optional[RequestError] = None


@dataclass(frozen=True)
class ScoreOutput:
    """The log-likelihood of one continuation or text.

    request: the request as it was given.
    logprob: the sum of token_logprobs, natural logarithms; nan where `error` says why the request failed.
    is_greedy: every scored token is the likeliest one at its place.
    token_ids: the tokens that were scored.
    """

    index: int
    request: Any
    logprob: float = float("nan")
    is_greedy: bool = False
    token_ids: List[int] = field(default_factory=list)
    token_logprobs: List[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    error: Optional[RequestError] = None


def _error_of(record: Dict[str, Any]) -> Optional[RequestError]:
    error = record.get("error")
    return None if error is None else RequestError(error["code"], error["message"])


def _logprobs_of(record: Dict[str, Any]) -> Optional[List[Dict[int, Logprob]]]:
    tokens = record.get("logprobs")
    if tokens is None:
        return None
    return [{token: Logprob(value) for token, value in [(one["token"], one["logprob"]), *one.get("top", [])]}
            for one in tokens]


def request_output(index: int, prompt: Any, record: Dict[str, Any]) -> RequestOutput:
    error = _error_of(record)
    if error is not None:
        return RequestOutput(index, prompt, error=error)
    completion = CompletionOutput(0, record.get("text", ""), record["tokens"], record["finish_reason"],
                                  _logprobs_of(record), record.get("reasoning"))
    return RequestOutput(index, prompt, [completion], record["usage"]["prompt_tokens"])


def score_output(index: int, request: Any, record: Dict[str, Any]) -> ScoreOutput:
    error = _error_of(record)
    if error is not None:
        return ScoreOutput(index, request, error=error)
    return ScoreOutput(index, request, record["logprob"], record["is_greedy"], record["tokens"],
                       record["token_logprobs"], record["usage"]["prompt_tokens"])
