"""How completions are sampled."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Sequence, Union


@dataclass(frozen=True)
class SamplingParams:
    """How to complete a prompt. What is None is as LLM's options say, else the program's default.

    max_tokens: tokens to generate at most (16 by default).
    temperature: below 0.00001, the default, the likeliest token is taken.
    top_p, top_k, min_p: which tokens may be drawn; 1, 0 and 0 are off.
    repetition_penalty: divides the logits of tokens seen before; 1 is off.
    stop: texts that end the completion and are not part of it.
    seed: equal prompts with equal seeds draw equal tokens. Without one each prompt draws from a seed of its own.
    logprobs: adds log-probabilities, and as many alternatives for each token, up to 20.
    ignore_eos: goes on after the end-of-sequence token.
    add_special_tokens: False reads the prompt without the tokens that a tokenizer puts around it, such as BOS.
    """

    max_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    stop: Union[str, Sequence[str], None] = None
    seed: Optional[int] = None
    logprobs: Optional[int] = None
    ignore_eos: Optional[bool] = None
    add_special_tokens: Optional[bool] = None

    def fields(self) -> Dict[str, Any]:
        """What is set, by the names of prompt lines."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if given.get("top_k") == -1:  # what other libraries call off
            given["top_k"] = 0
        return given
