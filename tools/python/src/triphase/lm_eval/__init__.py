"""Triphase as a model of EleutherAI's lm-evaluation-harness (pip install lm_eval).

    python -m triphase.lm_eval --model triphase --model_args pretrained=DIR --tasks piqa

takes the arguments of the harness itself. Harnesses that know plugins find the model by themselves
(lm_eval --model triphase); elsewhere `import triphase.lm_eval` registers it. model_args:
pretrained=DIR or model=DIR (required), every option that `triphase score` and `run` share, with
underscores (attention=sparq, kv_sparsity=0.8: decode every scored and generated token under it;
device_memory=8GiB), program=PATH (default: the package's own), extra=OPTIONS (more options,
separated by blanks, such as --attention-option sparq.rank=32), keep=FOLDER (leave requests and
records there; an interrupted evaluation with the same folder, model and options goes on where it stopped).

The harness hands over all requests of a kind at once: they are written to one file, one `triphase`
answers them, and equal contexts are computed once. No torch is needed.
"""

import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import NamedTuple

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from triphase._program import FIXED_NAMES, command_line, environment, find_program

# Names of the length in tasks, the first that is given counts, and what the harness's own models take for none.
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
DEFAULT_MAX_TOKENS = 256
MESSAGE_OPTIONS = frozenset(("log_format", "progress", "quiet", "verbose"))  # as the environment has them


class Unsupported(NotImplementedError):
    """What the harness may ask and the adapter cannot do."""


class Chat(NamedTuple):
    """What the harness takes for the text of a chat: its messages. The program applies the template."""

    messages: str

    def encode(self, encoding):  # the harness hashes what it asked
        return self.messages.encode(encoding)


def _generation_fields(wanted):
    """A task's generation_kwargs as fields of a prompt line. What the harness gives no meaning stays as it is:
    the program warns of what it does not know, and refuses what would change the text."""
    fields = dict(wanted)
    lengths = [fields.pop(name, None) for name in LENGTH_NAMES]
    fields["max_tokens"] = next((int(length) for length in lengths if length is not None), DEFAULT_MAX_TOKENS)
    until = fields.pop("until", None) or []
    stop = [text for text in ([until] if isinstance(until, str) else until) if text]
    if stop:
        fields["stop"] = stop
    do_sample, temperature = fields.pop("do_sample", None), fields.pop("temperature", None)
    if temperature is None:
        temperature = 1.0 if do_sample else 0.0
    if do_sample is not False and float(temperature) > 0.0:
        fields["temperature"] = float(temperature)
        if fields.get("top_k") == -1:  # what other libraries call off
            fields["top_k"] = 0
    else:
        fields["temperature"] = 0.0  # whatever the job's default is
        for name in ("top_p", "top_k", "min_p"):
            fields.pop(name, None)
    return fields


def _end_on_sigterm():
    """Ends Python as Ctrl-C does: by default the program would go on, and its files stay."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@register_model("triphase")
class TriphaseLM(LM):
    def __init__(self, pretrained=None, model=None, program=None, extra="", keep=None, batch_size=None,
                 max_batch_size=None, device=None, **options):
        super().__init__()
        if (pretrained is None) == (model is None):
            raise ValueError("--model_args pretrained=DIR: the model directory, once")
        fixed = sorted(FIXED_NAMES & options.keys())
        if fixed:
            raise ValueError(f"--model_args: {fixed[0]} is set by the adapter itself")
        self._model = str(pretrained if model is None else model)
        self._program = find_program(program)
        self._options = shlex.split(extra) + command_line(options)
        if str(batch_size).isdigit() and int(batch_size) > 1:
            self._options += ["--batch-size", str(batch_size)]
        self._keep = pathlib.Path(keep) if keep else None
        # The harness names a device of torch's, whether there is one or not: extra=--device is ours.
        del device, max_batch_size

    def _run(self, command, input_option, lines):
        """One record for each of `lines`, in order."""
        if not lines:
            return []
        text = "".join(json.dumps(line) + "\n" for line in lines)
        _end_on_sigterm()
        scratch = None
        folder = self._keep
        if folder is None:
            scratch = folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-lm-eval-"))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            job = shlex.join([os.path.realpath(self._model), *self._options]) + "\n" + text
            name = f"{command}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"
            requests, output = folder / f"{name}.in.jsonl", folder / f"{name}.jsonl"
            requests.write_text(text, encoding="utf-8")
            # Every request is this process's own, also in an element of a Slurm array.
            arguments = [self._program, command, "--model", self._model, input_option, str(requests),
                         "--output", str(output), "--truncate", "left", "--shard", "0/1", *self._options]
            result = subprocess.run(arguments, check=False, env=environment(MESSAGE_OPTIONS))
            if result.returncode not in (0, 1):
                raise RuntimeError(f"{shlex.join(arguments)} ended with {result.returncode}")
            with output.open("rb") as written:  # str.splitlines() would cut records at U+2028 in a text
                records = [json.loads(line) for line in written]
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
        for record in records:
            if "error" in record:
                error = record["error"]
                raise RuntimeError(f"request {record['index']}: {error['message']} [{error['code']}]")
        if len(records) != len(lines):
            raise RuntimeError(f"{len(records)} records for {len(lines)} requests")
        return records

    @property
    def tokenizer_name(self):
        return os.path.realpath(self._model)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        if not add_generation_prompt:
            raise Unsupported("--apply_chat_template: a task with gen_prefix, expected one whose answers the "
                              "model begins; hint: leave the option out")
        return Chat(json.dumps(chat_history))

    def _score(self, lines):
        # Equal requests (multiple-choice tasks have many) are scored once.
        unique = {}
        places = [unique.setdefault(json.dumps(line), len(unique)) for line in lines]
        records = self._run("score", "--requests", [json.loads(line) for line in unique])
        return [records[place] for place in places]

    def loglikelihood(self, requests):
        pairs = [request.args for request in requests]
        if any(isinstance(context, Chat) for context, _ in pairs):
            raise Unsupported("--apply_chat_template: a task of log-likelihoods, expected one of generated "
                              "answers; hint: leave the option out")
        records = self._score([{"context": context, "continuation": continuation} for context, continuation in pairs])
        answers = [(record["logprob"], record["is_greedy"]) for record in records]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def loglikelihood_rolling(self, requests):
        records = self._score([{"text": request.args[0]} for request in requests])
        answers = [record["logprob"] for record in records]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests):
        lines = []
        for prompt, wanted in (request.args for request in requests):
            what = {"messages": json.loads(prompt.messages)} if isinstance(prompt, Chat) else {"prompt": prompt}
            lines.append({**what, **_generation_fields(wanted)})
        answers = [record["text"] for record in self._run("run", "--prompts", lines)]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers
