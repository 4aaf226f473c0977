"""Jobs on a GPU, as gpu_jobs_test.py and gpu_matrix.py run them: models, prompts, options, and how answers compare.

The model is a config of random weights; prompts are token ids. That work runs in another order is the emulated device's
part (tests/emulated/emulated_device.h): 0 is lazy, 1 eager, others are random. There answers are the same bytes. A real
GPU's library may round a product of another batch otherwise: tokens may differ where the two best were that close, and
everything after them.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="runs the jobs")
    parser.add_argument("triphase", help="the program as users have it")
    parser.add_argument("--device", default="cuda:emulated")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models" / "shipped")
    return parser.parse_known_args()


ARGUMENTS, OTHERS = parse_arguments()  # those of the script itself
DEVICE = ARGUMENTS.device
IS_EMULATED = DEVICE == "cuda:emulated"
CLOSE = 0.2  # nats, against the CPU or, on a real GPU, between places
JOB_SECONDS = 600 if IS_EMULATED else 90
LENGTHS = (70, 33, 100, 5, 64, 90)
LONGEST = "200"
METHODS = ("local", "strided", "lm-infinite", "swa", "h2o", "sparq", "topk", "quest", "squeezed", "squeezed.levels=2",
           "random")  # fmt: skip
# Uploads of what a job brings once, before it knows pinned memory: Squeezed's clusters.
ONCE = {"squeezed": 4, "squeezed.levels=2": 7}
# Options that make KV, weights or hidden states cross the link in these small jobs, by policy.
TIGHT = ("--host-memory", "64MiB", "--device-kv-memory", "260KiB", "--max-context", LONGEST)


def options(*pairs):
    return [f"--policy-option={pair}" for pair in pairs]


POLICIES = {
    "triphase": ("--policy", "triphase", *options("p1=2", "alpha=0.8"), *TIGHT),
    "flexgen": ("--policy", "flexgen", *options("kv-share=0.25", "weight-share=0.5"), "--host-memory", "64MiB"),
    "flexgen on the CPU": ("--policy", "flexgen", *options("kv-share=0.25", "host-kv=cpu-attention"), "--host-memory",
                           "64MiB"),
    "vllm": ("--policy", "vllm", *options("preemption=swap"), *TIGHT),
    "accelerate": ("--policy", "accelerate", "--host-memory", "64MiB", "--max-context", LONGEST),
    "zero": ("--policy", "zero", "--host-memory", "64MiB", "--max-context", LONGEST),
    "zero of 2023": ("--policy", "zero", *options("mode=2023"), "--host-memory", "64MiB", "--max-context", LONGEST),
}
ON_CPU = ("flexgen on the CPU", "zero of 2023")  # attend on the host: dense, and no INT8
RECOMPUTE = options("p1=2", "p2=6", "alpha=0.8", "beta=0.6", "window=8", "input-tokens=96")


def config(kv_heads):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": kv_heads, "head_dim": 32,
            "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "bfloat16"}  # fmt: skip


def experts(count, per_token):
    return {**config(2), "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 48,
            "num_local_experts": count, "num_experts_per_tok": per_token}  # fmt: skip


def windowed(window, sliding=(True, True, True)):
    """`sliding`: which layers attend the last `window` tokens alone."""
    kinds = ["sliding_attention" if slides else "full_attention" for slides in sliding]
    return {**config(2), "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": True,
            "sliding_window": window, "num_hidden_layers": len(kinds), "layer_types": kinds}  # fmt: skip


def difference(ours, theirs):
    """What differs in two lines' tokens and log-probabilities beyond close calls; None: nothing."""
    for at, (token, expected) in enumerate(zip(ours["logprobs"], theirs["logprobs"], strict=True)):
        first, second = (logprob for _, logprob in expected["top"][:2])
        where = f"line {theirs['index']}, token {at}"
        if token["token"] != expected["token"]:
            if first - second >= CLOSE:
                return f"{where}: {token['token']}, not {expected['token']}, which leads by {first - second:.3f}"
            return None
        if abs(token["logprob"] - expected["logprob"]) > CLOSE:
            return f"{where}: log-probability {token['logprob']:.3f}, not {expected['logprob']:.3f}"
    return None


class Answers:
    """How answers compare: always by bytes, and by close calls too where arithmetic may differ."""

    seen = collections.Counter()

    @staticmethod
    def compare(answers, expected, exact=IS_EMULATED):
        """same, close, or what is wrong."""
        verdict = "same"
        if answers != expected:
            verdict = "other answers"
            if not exact:
                lines = [[json.loads(line) for line in text.splitlines()] for text in (answers, expected)]
                verdict = "other lines"
                if len(lines[0]) == len(lines[1]):
                    verdict = next(filter(None, map(difference, *lines)), "close")
        Answers.seen[verdict if verdict in ("same", "close") else "wrong"] += 1
        return verdict


class Jobs:
    """A folder with models and prompts, and the jobs that are run over them."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for kv_heads in (2, 4):
            (self.folder / f"heads{kv_heads}.json").write_text(json.dumps(config(kv_heads)))
        self.write_prompts("prompts", LENGTHS)

    def write_prompts(self, name, lengths, most=None, lines_differ=True):
        """`most`: tokens of some lines, by number."""
        with (self.folder / f"{name}.jsonl").open("w") as out:
            for line, length in enumerate(lengths):
                tokens = [3 + (line * lines_differ * 37 + at * 11 + at * at) % 290 for at in range(length)]
                limit = {"max_tokens": most[line]} if line in (most or {}) else {}
                print(json.dumps({"id": str(line), "prompt_tokens": tokens, **limit}), file=out)

    def command(self, name, *extra, kv_heads=2, tokens=24, device=DEVICE, prompts="prompts", model=None, batch=4,
                draw=("--temperature", "0", "--ignore-eos")):
        logprobs = [] if device == "cuda:emulated" else ["--logprobs", "2"]
        return [ARGUMENTS.program, "run", "--model", str(self.folder / f"{model or f'heads{kv_heads}'}.json"),
                "--random-weights", "--prompts", str(self.folder / f"{prompts}.jsonl"), "--max-tokens",
                str(tokens), *draw, "--batch-size", str(batch), "--progress", "off", "--device", device,
                "--output", str(self.folder / f"{name}.jsonl"), *logprobs, *extra]  # fmt: skip

    def attention(self, method, model="heads2"):
        """Options under which a method leaves out some of the prompts' tokens."""
        name, level, _ = method.partition(".levels=")
        if name != "squeezed":
            return [] if method == "dense" else ["--attention", method, "--kv-sparsity", "0.6"]
        clusters = self.folder / f"{model}-clusters"
        if not clusters.is_dir():
            # Whole blocks, so that lines end in their blocks where they would without it.
            context = self.folder / "context.json"
            context.write_text(json.dumps([3 + (at * 7 + at * at * 3) % 290 for at in range(64)]))
            subprocess.run([ARGUMENTS.program, "cluster", "--model", str(self.folder / f"{model}.json"),
                            "--random-weights", "--context", str(context),
                            "--context-format", "ids", "--output", str(clusters), "--window", "12", "--centroids",
                            "0.2", "--coarse-centroids", "0.05", "--sparsity", "0.6", "--progress", "off", "--device",
                            "cpu"], capture_output=True, check=True, timeout=JOB_SECONDS)  # fmt: skip
        levels = ["--attention-option", f"squeezed{method.removeprefix(name)}"] if level else []
        return ["--fixed-context", str(clusters), "--attention", "squeezed", *levels]

    def environment(self, machine):
        machines = {"TRIPHASE_EMULATED": machine} if IS_EMULATED else {}
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), **machines}

    def run(self, name, *extra, machine="schedule=0", ending=0, **job):
        """Summary and answers of a job that ends with this exit code."""
        output = self.folder / f"{name}.jsonl"
        done = subprocess.run(self.command(name, *extra, **job), capture_output=True, text=True, timeout=JOB_SECONDS,
                              check=False, env=self.environment(machine))
        if done.returncode != ending:
            raise AssertionError(f"{name} ({machine}): exit {done.returncode}\n{done.stderr[-2000:]}")
        self.log = done.stderr
        if ending != 0:
            return done.stderr, None
        return json.loads(pathlib.Path(f"{output}.summary.json").read_text()), output.read_bytes()
