"""The table of tools/lab/compare_builds.py: its inputs and its rows.

A row's commands run one after another in a folder of its own. $mha, $gqa and $in stand for the shipped
models and the folder of inputs.
"""

import itertools
import json
from dataclasses import dataclass

POLICIES = ("triphase", "device-only", "flexgen", "vllm", "accelerate", "zero")

# Every option of a method that a tiny context needs to leave anything out.
METHODS = {
    "dense": "",
    "local": "--kv-sparsity 0.5",
    "strided": "--kv-sparsity 0.5",
    "swa": "--kv-sparsity 0.5",
    "sparq": "--attention-option sparq.rank=8 --attention-option sparq.k=24",
    "squeezed": "--fixed-context clusters",
    "h2o": "--attention-option h2o.k=24",
    "lm-infinite": "--attention-option lm-infinite.sinks=4 --attention-option lm-infinite.k=24",
    "topk": "--attention-option topk.k=24",
    "quest": "--attention-option quest.k=48 --attention-option quest.dense_layers=1",
}

# Triphase's schedule is written out, so that all three phases are met at tiny lengths.
PHASES = "--policy-option p1=4 --policy-option p2=8 --policy-option alpha=0.8 --policy-option window=8"
THREE_PHASES = f"{PHASES} --policy-option beta=0.6 --policy-option input-tokens=96"
POLICY_OPTIONS = {
    "triphase": (THREE_PHASES, PHASES),
    "device-only": ("",),
    "flexgen": (
        "--policy-option kv-share=0.25 --policy-option gpu-batch=2",
        "--policy-option kv-share=0.5 --policy-option weight-share=0.5 --policy-option overlap=off",
    ),
    "vllm": ("--policy-option preemption=recompute", "--policy-option preemption=swap"),
    "accelerate": ("", "--policy-option overlap=off"),
    "zero": ("",),
}
DTYPES = ("bf16", "int8", "fp16", "fp32")

# Prompts of up to some 150 tokens; of the budget for KV on the device only a few requests fit.
JOB = "--output out.jsonl --threads 1 --progress off --max-context 256 --prefill-chunk 64"
LONG_JOB = JOB.replace("--max-context 256", "--max-context 512")  # behind a fixed context
HOST = "--host-memory 128MiB --emulate-link 5GB/s"
KV_KIB = {"mha": 4096, "gqa": 1536}  # of FP16 and BF16 KV on the device; it is scaled for the other types


def room(model, dtype="bf16", method="dense", policy="triphase"):
    """Budgets that hold the longest request, but not the KV of the whole batch."""
    # INT8 blocks have 64 tokens, so that a batch needs more room than its bytes.
    share = {"int8": 1.5 if model == "mha" else 2.25, "fp32": 2}.get(dtype, 1)
    share *= {"sparq": 1.5, "squeezed": 2}.get(method, 1)
    if policy == "vllm":
        share *= 1.15 if dtype == "int8" else 0.75
    if policy == "device-only":
        return "--device-memory 64MiB"
    if policy in ("accelerate", "zero"):
        # KV is on one tier as a whole: accelerate's goes to the host, for zero's layers are streamed.
        fixed, kv = {("accelerate", "mha"): (11, 6), ("accelerate", "gqa"): (10.5, 2.5),
                     ("zero", "mha"): (8, 10), ("zero", "gqa"): (8, 4.5)}[policy, model]  # fmt: skip
        fixed += {"squeezed": 2, "swa": 2}.get(method, 0)
        return f"--device-memory {round((fixed + kv * share) * 1024)}KiB"
    return f"--device-memory 32MiB --device-kv-memory {round(KV_KIB[model] * share)}KiB"


@dataclass(frozen=True)
class Row:
    name: str
    commands: tuple[str, ...]
    ends: int = 0  # exit code of the last command; those before it end with 0
    kill: bool = False  # the last command is killed once it has written a record, and started again


def write_inputs(folder, texts):
    """The prompt files, from a list of texts; the same bytes on every machine."""
    story = " ".join(texts)

    def write(name, lines):
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")

    def ids(line, count):
        return [10 + line] + [40 + (line * 37 + at * 11) % 1900 for at in range(count - 1)]

    shared = story[400:700]
    greedy = [
        {"id": "short", "prompt": "Once", "max_tokens": 8},
        {"id": "one", "prompt": story[:120], "max_tokens": 24},
        {"id": "two", "prompt": story[120:520], "max_tokens": 16},
        {"id": "prefix 1", "prompt": shared + " What then?", "max_tokens": 20},
        {"id": "prefix 2", "prompt": shared + " And who was there?", "max_tokens": 12},
        {"id": "stop", "prompt": story[700:1000], "max_tokens": 24, "stop": [" the", "\n"]},
        {"id": "ids 1", "prompt_tokens": ids(1, 90), "max_tokens": 18},
        {"id": "ids 2", "prompt_tokens": ids(2, 33), "max_tokens": 24},
    ]
    sampled = [
        {"id": "warm", "prompt": story[1000:1200], "max_tokens": 20, "temperature": 0.8, "seed": 1},
        {"id": "nucleus", "prompt": shared + " Why?", "max_tokens": 16, "temperature": 1.2, "top_p": 0.9, "seed": 2},
        {"id": "best", "prompt_tokens": ids(3, 60), "max_tokens": 24, "temperature": 0.7, "top_k": 20},
        {"id": "floor", "prompt": story[1200:1650], "max_tokens": 12, "temperature": 1.5, "min_p": 0.05, "seed": 4},
        {"id": "penalty", "prompt": story[1650:1800], "max_tokens": 20, "temperature": 0.9, "seed": 5,
         "repetition_penalty": 1.3},
    ]
    write("grid.jsonl", greedy + sampled)
    write("greedy.jsonl", greedy)
    write("sampled.jsonl", sampled)
    write("own.jsonl", [{"id": f"q{n}", "prompt_tokens": ids(n, 8 + 5 * n), "max_tokens": 16,
                         "temperature": 0.4 * (n % 2), "seed": n} for n in range(6)])
    write("equal.jsonl", [{"id": f"e{n}", "prompt_tokens": ids(n, 96), "max_tokens": 24} for n in range(8)])
    write("mixed.jsonl", [
        *greedy[:5], "", "not json", "[1, 2]", '{"id": "a"', {"id": "no prompt"}, {"id": "one", "prompt": "again"},
        {"id": "both", "prompt": "x", "prompt_tokens": [5]}, {"id": "type", "prompt": 7},
        {"id": "range", "prompt": "x", "temperature": -1}, {"id": "unknown id", "prompt_tokens": [99999]},
        {"id": "empty", "prompt": ""}, {"id": "long", "prompt": story * 3}, {"id": 17, "prompt": "A number"},
        {"id": "chat", "messages": [{"role": "user", "content": "hello"}]},
        {"id": "special", "prompt": "<s> is </s> text"}, {"id": "logprobs", "prompt": story[:60], "logprobs": 3},
        {"id": "unicode", "prompt": "Gr\u00fc\u00dfe aus K\u00f6ln \u4f60\u597d \U0001f600", "max_tokens": 12},
        '{"id": "utf8", "prompt": "bad \udcff byte"}', {"id": "x" * 600, "prompt": "id too long"},
        *sampled, {"id": "n", "prompt": "x", "n": 2}, {"id": "stops", "prompt": story[:90], "stop": "a"},
    ])  # fmt: skip
    write("openai.jsonl", [
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions",
         "body": {"prompt": story[n * 50:n * 90 + 40], "max_tokens": 10 + n, "temperature": n % 2, "seed": n}}
        for n in range(5)
    ] + [{"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}])  # fmt: skip
    write("ids.jsonl", [ids(n, 5 + 9 * n) for n in range(6)])
    write("score.jsonl", [{"id": f"s{n}", "context": story[n * 70:n * 70 + 60], "continuation": story[n * 70 + 60:
                           n * 70 + 100 + 9 * n]} for n in range(8)] + [{"id": "text", "text": story[:200]},
                                                                       {"id": "bad", "context": "x"}])  # fmt: skip
    (folder / "context.txt").write_text(story[2000:2900], encoding="utf-8")
    (folder / "text.txt").write_text(story[:6000], encoding="utf-8")


def cluster(model, options=""):
    return f"cluster --model ${model} --context $in/context.txt --output clusters --threads 1 --progress off {options}"


def grid():
    """Each policy with each method and model; KV types and the policy's variants in turns."""
    for (p, policy), (m, method), (n, model) in itertools.product(
        enumerate(POLICIES), enumerate(METHODS), enumerate(("mha", "gqa"))
    ):
        dtype = DTYPES[(p + 3 * m + 2 * n) % 4]
        options = POLICY_OPTIONS[policy][(m + n) % len(POLICY_OPTIONS[policy])]
        if policy == "triphase" and model == "gqa" and dtype == "int8":
            options = PHASES  # its hidden states would be larger than its KV
        if policy == "accelerate" and dtype == "int8":
            dtype = "bf16"  # INT8 KV of a batch this small always fits the device
        first, job, prompts = (), JOB, "grid"
        if method == "squeezed":
            first, job, prompts = (cluster(model),), LONG_JOB, "own"
        run = (f"run --model ${model} --prompts $in/{prompts}.jsonl {job} {HOST} --policy {policy} "
               f"{room(model, dtype, method, policy)} {options} --attention {method} {METHODS[method]} "
               f"--batch-size 6 --kv-dtype {dtype} --trace trace.json")  # fmt: skip
        yield Row(f"grid/{policy}/{method}/{model}", (*first, run))


def runs():
    run = "run --model $mha --prompts $in/grid.jsonl " + JOB
    small = f"{HOST} {room('mha')}"
    for model in ("mha", "gqa"):
        for dtype in DTYPES:
            plain = f"run --model ${model} --prompts $in/grid.jsonl {JOB} --kv-dtype {dtype}"
            yield Row(f"plain/{model}/{dtype}", (plain,))
        host = f"{HOST} {room(model)}"
        yield Row(f"greedy/{model}", (f"run --model ${model} --prompts $in/greedy.jsonl {JOB} --ignore-eos "
                                      f"--logprobs 2 --max-tokens 12 {host} {THREE_PHASES} --kv-dtype bf16",))
        yield Row(f"sampled/{model}", (f"run --model ${model} --prompts $in/sampled.jsonl {JOB} --seed 9 "
                                       "--temperature 0.9 --top-k 40 --top-p 0.9 --min-p 0.01 --ignore-eos "
                                       f"{host} {PHASES} --kv-dtype bf16",))
        yield Row(f"phase-3/{model}", (f"run --model ${model} --prompts $in/equal.jsonl {JOB} {host} {THREE_PHASES} "
                                       "--batch-size 8 --kv-dtype bf16 --kv-block 16 --trace trace.json",))
        yield Row(f"mixed/{model}", (f"run --model ${model} --prompts $in/mixed.jsonl {JOB} --max-tokens 10",), ends=1)
    for name, options in {
        "two-threads": "--threads 2", "batch-2": "--batch-size 2", "blocks-16": f"--kv-block 16 {small} {PHASES}",
        "by-completion": "--order completed --batch-size 3", "stop": "--stop he --stop , --logprobs 1",
        "random-weights": "--random-weights",
        "no-token-cache": f"{small} {PHASES} --attention topk --attention-option topk.k=16 --token-cache 0B",
        "token-cache": f"{small} {PHASES} --attention swa --kv-sparsity 0.7 --token-cache 256KiB",
        "auto-sparsity": "--attention swa --kv-sparsity auto --max-divergence 0.2",
        "cpu-attention": f"{small} --policy flexgen --policy-option kv-share=0.25 "
                         "--policy-option host-kv=cpu-attention",
        "zero-2023": f"{small} --policy zero --policy-option mode=2023 --kv-dtype fp16",
        "streamed-weights": "--device-memory 9MiB --host-memory 128MiB --batch-size 2 --prefill-chunk 16 --profile t4",
        "sparq-no-kt": f"{small} {PHASES} --attention sparq --attention-option sparq.k=24 "
                       "--attention-option sparq.kt=off",
        "swa-buckets": "--attention swa --kv-sparsity 0.6 --attention-option swa.history=buckets",
        "predict": f"{small} --policy flexgen --policy-option kv-share=0.5 --predict --profile t4",
    }.items():  # fmt: skip
        command = run.replace("--threads 1", "") if "--threads" in options else run
        command = command.replace("--prefill-chunk 64", "") if "--prefill-chunk" in options else command
        yield Row(f"run/{name}", (f"{command} {options}",))
    command = f"{run} --kv-dtype int8"
    yield Row("run/cached-hidden-states", (f"{command} --cached-hidden-states 40",))
    own = "run --model $mha --output out.jsonl --threads 1 --progress off --max-tokens 8 --prompts $in/"
    yield Row("run/openai", (own + "openai.jsonl",), ends=1)
    yield Row("run/ids", (own + "ids.jsonl --input-format ids",))
    yield Row("run/lenient", (own + "mixed.jsonl --truncate left --allow-duplicate-ids --no-special --max-context 200 "
                              "--invalid-utf8 replace --max-line-bytes 1KiB",), ends=1)
    yield Row("run/truncate-right", (own + "mixed.jsonl --truncate right --max-context 200 --redact",), ends=1)
    yield Row("run/strict", (own + "mixed.jsonl --strict",), ends=4)
    # A small budget and a built-in machine: the plan and its times are the same everywhere.
    for model in ("mha", "gqa"):
        planned = (f"run --model ${model} --prompts $in/equal.jsonl {JOB} --host-memory 64MiB "
                   f"{room(model)} --batch-size 8")  # fmt: skip
        yield Row(f"planned/{model}", (f"{planned} --profile t4 --trace trace.json",))
        yield Row(f"planned/{model}/no-recompute", (f"{planned} --profile t4 --recompute off --attention h2o",))
    yield Row("planned/file", (
        "plan --model $mha --profile t4 --batch-size 8 --input-len 96 --output-len 24 --device-memory 14MiB "
        "--host-memory 64MiB --output made.plan.json",
        f"run --model $mha --prompts $in/equal.jsonl {JOB} --plan made.plan.json --plan-force "
        "--batch-size 8"))  # fmt: skip


def jobs():
    run = f"run --model $mha --prompts $in/grid.jsonl {JOB} --batch-size 2 --sync-every 0.02s"
    small = f"{HOST} {room('mha')}"
    slow = small.replace("5GB/s", "300MB/s")
    yield Row("resume/device", (run,), kill=True)
    yield Row("resume/host", (f"{run} {slow} {THREE_PHASES} --kv-dtype bf16",), kill=True)
    yield Row("resume/required", (f"{run} --resume require",), ends=4)
    yield Row("resume/other-job", (run, f"{run} --seed 3"), ends=4)
    yield Row("resume/again", (run, run))
    parts = [run.replace("out.jsonl", f"part{part}.jsonl") + f" --shard {part}/3" for part in range(3)]
    yield Row("shards", (*parts, "merge part0.jsonl part1.jsonl part2.jsonl --output merged.jsonl"))
    yield Row("shards/missing", (*parts[:2], "merge part0.jsonl part1.jsonl --output merged.jsonl"), ends=4)
    yield Row("dry-run", (f"{run} {small} --dry-run --profile t4",))
    yield Row("dry-run/too-small", (f"{run} --device-memory 1MiB --dry-run",), ends=5)
    score = "score --model $gqa --requests $in/score.jsonl --output out.jsonl --threads 1 --progress off --policy device-only"
    yield Row("score", (f"{score} --token-logprobs",), ends=1)
    yield Row("score/int8", (f"{score} --batch-size 2 --kv-dtype int8 --order completed",), ends=1)
    data = "eval --model $mha --data $in/text.txt --format json --threads 1 --progress off"
    for method in ("dense", "swa", "sparq", "quest"):
        yield Row(f"eval/perplexity/{method}", (f"{data} --task perplexity --window 96 --attention {method} "
                                                f"{METHODS[method]}",))
    yield Row("eval/repetition", (f"{data} --task repetition --window 160 --samples 6 --attention dense,h2o "
                                  "--kv-sparsity 0,0.5 --kv-dtype bf16,int8",))
    yield Row("eval/attention", (f"{data} --task attention --window 96 --samples 2",))
    yield Row("cluster/gqa", (cluster("gqa", "--levels 2 --sparsity 0.7"),
                              f"run --model $gqa --prompts $in/own.jsonl {LONG_JOB} --fixed-context "
                              "clusters --attention squeezed --attention-option squeezed.levels=2"))
    yield Row("cluster/dense", (cluster("mha", "--levels 1"), f"run --model $mha --prompts $in/own.jsonl "
                                f"{LONG_JOB} --fixed-context clusters"))
    for model in ("mha", "gqa"):
        yield Row(f"inspect/{model}", (f"inspect --model ${model} --format json",))
    yield Row("inspect/shape", ("inspect --model llama-2-7b --format json",))


def tables():
    for name, options in {
        "t4": "--model opt-6.7b --profile t4", "sparse": "--model opt-30b --profile v100-16gb --kv-sparsity 0.8",
        "paper": "--model opt-13b --profile v100-16gb --schedule paper --kv-dtype int8",
        "miss-rate": "--model llama-2-7b --profile t4 --batch-size 16 --kv-sparsity 0.5 --miss-rate 0.4",
        "no-recompute": "--model llama-2-7b --profile rtx-4090 --batch-size 32 --kv-dtype fp16 --recompute off",
    }.items():  # fmt: skip
        yield Row(f"plan/{name}", (f"plan {options}",))
    yield Row("plan/nothing-fits", ("plan --model opt-30b --profile t4 --host-memory 1GiB",), ends=5)
    table = "simulate --model opt-6.7b --profile t4 --format json --batch-size 8,64"
    for name, options in {
        "all": "", "sparse": "--kv-sparsity 0.8 --policies triphase", "int8": "--kv-dtype int8 --output-len 128",
        "lines": "--lines 96 --policies triphase,vllm,device-only --output-len 128",
    }.items():  # fmt: skip
        yield Row(f"simulate/{name}", (f"{table} {options}",))
    for name, option in (("swap", "vllm.preemption=swap"), ("zero-2023", "zero.mode=2023 --kv-dtype fp16")):
        yield Row(f"simulate/{name}", (f"{table} --policies vllm,zero --policy-option {option}",))


def wrong():
    run = f"run --model $mha --prompts $in/grid.jsonl {JOB}"
    for name, command, ends in (
        ("unknown-command", "walk", 2), ("unknown-option", f"{run} --colour red", 2), ("no-model", "run", 2),
        ("twice", f"{run} --max-tokens 3 --max-tokens 4", 2), ("range", f"{run} --top-p 2", 2),
        ("unit", f"{run} --device-memory 16", 2), ("policy", f"{run} --policy lru", 2),
        ("policy-option", f"{run} --policy vllm --policy-option colour=red", 2),
        ("method", f"{run} --attention magic", 2),
        ("method-option", f"{run} --attention swa --attention-option swa.colour=red", 2),
        ("squeezed-alone", f"{run} --attention squeezed", 2), ("two-plans", f"{run} --plan a --profile t4", 2),
        ("shard", f"{run} --shard 3/3", 2), ("quiet-and-verbose", f"{run} --quiet --verbose", 2),
        ("no-prompts", run.replace("grid", "nothing"), 4), ("no-such-model", run.replace("$mha", "$in"), 3),
        ("output-is-input", run.replace("--output out.jsonl", "--output $in/grid.jsonl"), 2),
        ("plan-file", f"{run} --plan $in/grid.jsonl", 4), ("task", "eval --model $mha --data x --task y", 2),
    ):  # fmt: skip
        yield Row(f"wrong/{name}", (command,), ends=ends)


ROWS = [*grid(), *runs(), *jobs(), *tables(), *wrong()]
