"""Triphase from Python: prompts in, completions out, computed by the `triphase` program.

    from triphase import LLM, SamplingParams

    with LLM("path/to/model", attention="sparq", device_memory="8GiB") as llm:
        for output in llm.generate(["Once upon a time", "The end"], SamplingParams(max_tokens=64)):
            print(output.prompt, output.outputs[0].text)
"""

from triphase._llm import LLM
from triphase._program import OptionError, TriphaseError
from triphase._results import CompletionOutput, Logprob, RequestError, RequestOutput, ScoreOutput
from triphase._sampling import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "OptionError", "RequestError", "RequestOutput", "SamplingParams",
           "ScoreOutput", "TriphaseError"]
