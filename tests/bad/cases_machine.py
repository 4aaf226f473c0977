"""Rows R (resources), N (numbers) and X (resuming), and the rows L and P that need limits, variables or an
earlier run. The rows of these letters that need a signal, a full disk or a GPU are in other_rows.py.
"""

import json
import resource

from bad_case import PROMPTS, Case
from cases_model import changed, poison

RUN = ("run", "--model", "MODEL", "--prompts", "PROMPTS", "--output", "OUT")
BUILT_IN = ("run", "--model", "opt-125m", "--random-weights", "--prompts", "PROMPTS", "--output", "OUT", "--threads=1")
TWO = ("--shard=0/2",)


def nothing(_folder):
    pass


def file_with(name, content):
    return lambda folder: (folder / name).write_text(content)


def prompts(*lines):
    return file_with("prompts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def many_lines(folder):
    (folder / "prompts.jsonl").write_bytes(b"[\n" * 300_000 + PROMPTS)


def option_cases():
    flexgen = ("--policy=flexgen", "--policy-option")
    config = ("--config", "job.conf")
    four = {"TRIPHASE_MAX_TOKENS": "4"}
    return [
        *[Case(f"L7-{text}", nothing, 2, (text, "E-CLI-OPTION"), extra=(*flexgen, text))
          for text in ("kv-share=1.5", "kv-share=-1", "weight-share=nan", "gpu-batch=-1", "percent=1", "kv-share")],
        Case("L9-command-line-wins", file_with("job.conf", "max-tokens=3\nseed=1\n"), 0, env=four,
             stderr=("--max-tokens = 5 (command line)", "--seed = 1 (config file job.conf)"),
             extra=(*config, "--max-tokens=5", "--explain", "--dry-run")),
        Case("L9-environment-wins", file_with("job.conf", "max-tokens=3\n"), 0, env=four,
             stderr=("--max-tokens = 4 (environment TRIPHASE_MAX_TOKENS)",), extra=(*config, "--explain", "--dry-run")),
        Case("L9-environment-is-checked", nothing, 2, ("TRIPHASE_SEED", "E-CLI-OPTION"), env={"TRIPHASE_SEED": "x"}),
        Case("L9-environment-misspelled", nothing, 0, ("TRIPHASE_SEEDS",), env={"TRIPHASE_SEEDS": "1"}),
        Case("L9-no-such-simd", nothing, 2, ("TRIPHASE_SIMD", "E-CLI-SIMD"), env={"TRIPHASE_SIMD": "mmx"}),
        Case("L9-config-with-a-byte-order-mark", file_with("job.conf", "\ufeffmax-tokens=3\n"), 0,
             stderr=("--max-tokens = 3 (config file job.conf)",), extra=(*config, "--explain", "--dry-run")),
        Case("L9-config-missing", nothing, 2, ("job.conf", "E-CLI-CONFIG"), extra=config),
        *[Case(f"L9-config-{name}", file_with("job.conf", text), 2, texts, extra=config)
          for name, text, *texts in (("unknown", "max-token=1\n", "did you mean --max-tokens", "config file job.conf"),
                                     ("value", "seed=x\n", "seed (config file job.conf)", "E-CLI-OPTION"),
                                     ("twice", "seed=1\nseed=2\n", "the option once"),
                                     ("no-lines", "\x1b[2J\0", "E-CLI-CONFIG"),
                                     ("itself", "config=job.conf\n", "E-CLI-CONFIG"))],
        Case("L11-no-arguments", nothing, 2, args=(), stderr=("triphase: usage:",)),
        Case("P25-many-lines", many_lines, 1, records=300_002, output=('"id":"b"',), megabytes=256),
    ]


def resource_cases():
    return [
        Case("R4-budget-beyond-the-machine", nothing, 5, ("this machine or container has left", "E-MEM-FIT"),
             args=("run", "--model", "opt-30b", "--random-weights", "--prompts", "PROMPTS", "--output", "OUT"),
             extra=("--device-memory=4000GiB", "--batch-size=256", "--dry-run")),
        Case("R7-address-space", nothing, 5, ("ulimit -v", "E-MEM-ALLOC"), args=BUILT_IN, leaves_output=True,
             limits={resource.RLIMIT_AS: 400 << 20}, sanitized=False),
        # The limit holds for the messages as well, which need less.
        Case("R10-file-size", prompts(*[{"prompt_tokens": [1, 2]}] * 2000), 6,
             ("E-IO-NOSPACE", "(ulimit -f) and run the same command to resume"), absent=("free space",),
             limits={resource.RLIMIT_FSIZE: 20_000}, leaves_output=True),
        Case("R10-log-file", nothing, 0, ("--log-file /dev/full: No space left",), extra=("--log-file", "/dev/full")),
        Case("R20-descriptors", nothing, 5, ("ulimit -n", "E-MEM-FILES"), limits={resource.RLIMIT_NOFILE: 4},
             sanitized=False),
        Case("R20-threads", nothing, 5, ("--threads", "E-MEM-THREADS"), extra=("--threads=64",),
             limits={resource.RLIMIT_AS: 300 << 20}, sanitized=False),
        # Stacks of 1 GiB: the limit lets none, one or two threads start.
        *[Case(f"R20-{threads}-threads", nothing, 5, ("ulimit -u", "E-MEM-THREADS"), leaves_output=True,
               extra=("--threads=1", "--policy=flexgen", "--device-memory=1MiB", "--host-memory=16MiB"),
               limits={resource.RLIMIT_STACK: 1 << 30, resource.RLIMIT_AS: (threads << 30) + (500 << 20)}, sanitized=False)
          for threads in range(3)],
    ]


def number_cases():
    line = {"prompt_tokens": [1, 2], "max_tokens": 2}
    scored = ("score", "--model", "MODEL", "--requests", "PROMPTS", "--output", "OUT")
    return [
        Case("N1-nan-logits", changed(poison), 1, ("up_proj",), extra=("--check-weights=warn",),
             output=('"code":"E-NUM-LOGITS"',)),
        *[Case(f"N7-temperature-{text}", nothing, 2, (text, "E-CLI-OPTION"), extra=(f"--temperature={text}",))
          for text in ("inf", "-inf", "-1", "1e999")],
        Case("N7-almost-greedy", nothing, 0, extra=("--temperature=1e-30",), output=('"tokens":[16,20]',)),
        Case("N7-top-p", nothing, 2, ("1e-300", "E-CLI-OPTION"), extra=("--top-p=1e-300",)),
        Case("N7-one-token-is-left", prompts(*[{**line, **odd} for odd in (
            {"top_k": 4194304, "temperature": 100}, {"top_k": 1, "temperature": 1}, {"top_p": 1e-9, "temperature": 1},
            {"min_p": 1, "temperature": 1})]), 0, records=4, extra=("--ignore-eos",),
             output=tuple(f'"index":{index},"tokens":[' for index in range(4))),
        Case("N7-infinity-in-a-line", file_with("prompts.jsonl", '{"prompt_tokens": [1], "temperature": 1e999}\n'), 1,
             records=1, output=('"code":"E-IN-JSON"',)),
        Case("N8-one-token", prompts({"text_tokens": [1]}), 0, records=1, args=scored, output=('"logprob":-',)),
        Case("N8-longer-than-the-context", prompts({"text_tokens": [3] * 200}), 0, records=1, args=scored,
             output=('"logprob":-', '"completion_tokens":200')),
        Case("N10-deterministic", nothing, 0, extra=("--deterministic",)),
    ]


def resume_cases():
    first = (*RUN, *TWO)
    here = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}

    def again(row, exit, *texts, build=nothing, **more):
        return Case(row, build, exit, texts, **{"before": (RUN,), **more})

    return [
        again("X7-no-lock", 0, before=(), extra=("--no-lock",)),
        again("X10-another-seed", 4, "seed: 0 there, 3 now", "E-IN-MANIFEST", extra=("--seed=3",)),
        again("X10-another-input", 4, "input hash", "E-IN-MANIFEST",
              build=file_with("other.jsonl", '{"prompt_tokens": [7]}\n'),
              before=((*RUN[:4], "other.jsonl", *RUN[5:]),)),
        again("X11-complete", 0, "already complete"),
        again("X11-complete-with-failures", 1, "already complete", build=prompts({"prompt_tokens": [-1]}), records=1,
              output=('"code":"E-IN-TOKEN"',)),
        again("X12-shard-missing", 4, "1 of 2, missing 1", "E-IN-MERGE", before=((*RUN[:-1], "a.jsonl", *TWO),),
              args=("merge", "a.jsonl", "--output", "OUT")),
        again("X12-shard-twice", 4, "E-IN-MERGE", before=((*RUN[:-1], "a.jsonl", *TWO), (*RUN[:-1], "b.jsonl", *TWO)),
              args=("merge", "a.jsonl", "b.jsonl", "--output", "OUT")),
        again("X12-another-job", 4, "E-IN-MERGE",
              before=((*RUN[:-1], "a.jsonl", *TWO), (*RUN[:-1], "b.jsonl", "--shard=1/2", "--seed=3")),
              args=("merge", "a.jsonl", "b.jsonl", "--output", "OUT")),
        again("X13-another-shard", 4, "0/2 there, 1/2 now", before=(first,), extra=("--shard=1/2",)),
        again("X13-element-alone", 4, "0/2 there, 0/1 now", "--shard i/n", before=(first,), env=here),
        again("X13-element-beyond-the-count", 2, "SLURM_ARRAY_TASK_ID", "E-CLI-SHARD", before=(),
              env={**here, "SLURM_ARRAY_TASK_ID": "5"}),
    ]


def cases():
    return option_cases() + resource_cases() + number_cases() + resume_cases()
