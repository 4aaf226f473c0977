#!/usr/bin/env python3
"""Triphase as a model of EleutherAI's lm-evaluation-harness (pip install lm_eval).

    tools/lm_eval_triphase.py --model triphase --model_args model=DIR --tasks piqa

takes the arguments of the harness itself. model_args: model=DIR (required), attention=METHOD and
kv_sparsity=X (decode every scored and generated token under it; default: dense), program=PATH
(default: build/release/bin/triphase beside this folder, else `triphase` on the PATH), extra=OPTIONS
(more options for `triphase score` and `run`, separated by blanks, such as --attention-option
sparq.rank=32), keep=FOLDER (leave requests and records there; an interrupted evaluation with the same
folder and options goes on where it stopped).

The harness hands over all requests of a kind at once: they are written to one file, one `triphase`
answers them, and equal contexts are computed once. No torch is needed.
"""

import hashlib
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

BUILT = pathlib.Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "triphase"
DEFAULT_MAX_TOKENS = 256  # what the harness's own models generate when a task does not say


def find_program(name):
    found = shutil.which(name or str(BUILT)) or (None if name else shutil.which("triphase"))
    if found is None:
        raise FileNotFoundError(f"no program {name or 'triphase'}: build it (tools/build.sh release) or give "
                                "program=PATH in --model_args")
    return found


@register_model("triphase")
class TriphaseLM(LM):
    def __init__(self, model=None, attention=None, kv_sparsity=None, program=None, extra="", keep=None,
                 batch_size=None, max_batch_size=None, device=None, **unknown):
        super().__init__()
        if model is None:
            raise ValueError("--model_args model=DIR: the model directory is missing")
        if unknown:
            raise ValueError(f"--model_args: unknown {', '.join(sorted(unknown))}; known are model, attention, "
                             "kv_sparsity, program, extra, keep")
        self._model = str(model)
        self._program = find_program(program)
        self._options = shlex.split(extra)
        if attention is not None:
            self._options += ["--attention", str(attention)]
        if kv_sparsity is not None:
            self._options += ["--kv-sparsity", str(kv_sparsity)]
        if str(batch_size).isdigit() and int(batch_size) > 1:
            self._options += ["--batch-size", str(batch_size)]
        self._keep = pathlib.Path(keep) if keep else None
        # The harness names a device of torch's, whether there is one or not: extra=--device is ours.
        del device, max_batch_size

    def _run(self, command, input_option, lines):
        """One record for each of `lines`, in order."""
        if not lines:
            return []
        text = "".join(json.dumps({"id": number, **line}) + "\n" for number, line in enumerate(lines))
        scratch = None
        folder = self._keep
        if folder is None:
            scratch = folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-lm-eval-"))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            job = shlex.join(self._options) + "\n" + text
            name = f"{command}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"
            requests, output = folder / f"{name}.in.jsonl", folder / f"{name}.jsonl"
            requests.write_text(text, encoding="utf-8")
            arguments = [self._program, command, "--model", self._model, input_option, str(requests),
                         "--output", str(output), "--truncate", "left", *self._options]
            result = subprocess.run(arguments, check=False)
            if result.returncode not in (0, 1):
                raise RuntimeError(f"{shlex.join(arguments)} ended with {result.returncode}")
            records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
        for record in records:
            if "error" in record:
                raise RuntimeError(f"request {record['id']}: {record['error']['message']} [{record['error']['code']}]")
        if len(records) != len(lines):
            raise RuntimeError(f"{len(records)} records for {len(lines)} requests")
        return records

    def _score(self, lines):
        # Equal requests (multiple-choice tasks have many) are scored once.
        unique = {}
        places = [unique.setdefault(json.dumps(line), len(unique)) for line in lines]
        records = self._run("score", "--requests", [json.loads(line) for line in unique])
        return [records[place] for place in places]

    def loglikelihood(self, requests):
        pairs = [request.args for request in requests]
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
        for request in requests:
            prompt, wanted = request.args
            line = {"prompt": prompt, "max_tokens": int(wanted.get("max_gen_toks", DEFAULT_MAX_TOKENS))}
            until = wanted.get("until") or []
            stop = [until] if isinstance(until, str) else list(until)
            if any(stop):
                line["stop"] = [text for text in stop if text]
            if wanted.get("do_sample") and float(wanted.get("temperature", 1.0)) > 0.0:
                line["temperature"] = float(wanted.get("temperature", 1.0))
                for option in ("top_p", "top_k"):
                    if option in wanted:
                        line[option] = wanted[option]
            lines.append(line)
        answers = [record["text"] for record in self._run("run", "--prompts", lines)]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
