#!/usr/bin/env python3
"""Makes tests/fixtures/parity: small random checkpoints with the logits transformers computes.

Every directory holds a checkpoint as transformers saves it (config.json, model.safetensors or
shards) and expected.safetensors, whose numbers are float64 results of transformers' own code. The
C++ test needs neither torch nor transformers. Run with the packages named in
tests/fixtures/parity/README.md:

    python3 tools/lab/make_parity_fixtures.py                 write every fixture
    python3 tools/lab/make_parity_fixtures.py llama3-gqa4     write the ones named
    python3 tools/lab/make_parity_fixtures.py --check         recompute from the committed checkpoints

How the reference becomes float64: transformers widens to float32 inside RMSNorm, softmax and the
rotary tables. While the reference model is built and run, the names torch.float32, torch.float and
Tensor.float stand for float64 (float64_everywhere), so the same code runs in float64. Each result
is compared with the unpatched float32 model before it is written.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity_variants import VARIANTS, Variant

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "parity"
PROMPT_LENGTHS = (1, 2, 7, 33, 200)
GREEDY_TOKENS = 64
TOLERANCE = 1e-4  # of the logit range: what the C++ test allows in FP32
GAP = 10 * TOLERANCE  # every greedy step's best logit leads by more than this part of the range
MIN_DISTINCT = 8  # a continuation that repeats one token would test little
# A token's last chosen expert leads the first left out by more than this part of the range of its
# router's logits: rounding KV to 16 bits must not choose others.
ROUTER_GAP = 0.004
# Plain products, which exist in float64.
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
FLOAT32_AGREEMENT = 3e-5  # unpatched float32 against the float64 reference, of the logit range


@contextlib.contextmanager
def float64_everywhere():
    """Makes every float32 that transformers' Python code asks for a float64."""
    saved = (torch.float32, torch.float, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = lambda tensor: tensor.double()
    try:
        yield
    finally:
        torch.float32, torch.float = saved[0], saved[1]
        del torch.Tensor.float
        torch.set_default_dtype(saved[2])


class RefuseNarrowFloats(TorchDispatchMode):
    """Fails when any operation yields a float narrower than 64 bits."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            assert result.dtype == torch.float64, (function, result.dtype)
        return result


class Reference:
    """A checkpoint run by transformers in float64, on one sequence at a time."""

    def __init__(self, directory: pathlib.Path):
        more = {}
        if "quantization_config" in json.loads((directory / "config.json").read_text()):
            more["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        self.float32 = (
            transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, **EAGER, **more
            )
            .float()
            .eval()
        )
        self.config = self.float32.config
        with float64_everywhere():
            self.float64 = transformers.AutoModelForCausalLM.from_config(
                self.config, dtype=torch.float64, **EAGER
            ).eval()
            self.float64.load_state_dict(self.float32.state_dict())
        assert all(p.dtype == torch.float64 for p in self.float64.parameters())
        self._round_embedding_scale()

    def _round_embedding_scale(self):
        """Gemma multiplies by sqrt(hidden) rounded to float32: a part of the model."""
        rounded = dict(self.float32.named_buffers())
        for name, buffer in self.float64.named_buffers():
            if name.endswith("embed_scale"):
                buffer.copy_(rounded[name].double())

    @staticmethod
    def _rotary(model):
        return next((m for m in model.modules() if hasattr(m, "max_seq_len_cached")), None)

    def _run(self, model, tokens, admitted):
        """Logits [len(tokens), vocab]; dynamic and long RoPE follow the length of `admitted` tokens."""
        rotary = self._rotary(model)
        if rotary is None or rotary.rope_type not in ("dynamic", "longrope"):
            return model(torch.tensor([tokens]), use_cache=False).logits[0]
        # Forget longer prompts seen before, let the module choose the frequencies of `admitted`
        # tokens, and hide the type so that later tokens do not change them.
        kind = rotary.rope_type
        if kind == "dynamic":
            rotary.max_seq_len_cached = rotary.original_max_seq_len
            rotary.inv_freq = rotary.original_inv_freq
        rotary(torch.zeros(1), torch.arange(admitted)[None])
        rotary.rope_type = "fixed"
        try:
            return model(torch.tensor([tokens]), use_cache=False).logits[0]
        finally:
            rotary.rope_type = kind

    @torch.no_grad()
    def logits(self, tokens, admitted=None):
        """Float64 logits [len(tokens), vocab] as a numpy array."""
        admitted = len(tokens) if admitted is None else admitted
        with float64_everywhere(), RefuseNarrowFloats():
            result = self._run(self.float64, tokens, admitted)
        return result.numpy()

    def least_router_lead(self, tokens):
        """The smallest lead of a last chosen expert, as a part of its logits' range; 1 without."""
        leads = [1.0]

        def note(router, inputs, _):
            bias = getattr(router, "bias", None)
            logits = torch.nn.functional.linear(inputs[0].flatten(0, -2), router.weight, bias)
            ranked = logits.sort(dim=-1, descending=True).values
            lead = ranked[:, router.top_k - 1] - ranked[:, router.top_k]
            leads.append(float((lead / (ranked[:, 0] - ranked[:, -1])).min()))

        routers = [m for m in self.float64.modules() if type(m).__name__.endswith("TopKRouter")]
        hooks = [router.register_forward_hook(note) for router in routers]
        self.logits(tokens)
        for hook in hooks:
            hook.remove()
        return min(leads)

    @torch.no_grad()
    def float32_error(self, tokens, expected):
        """How far the unpatched float32 model is from `expected`, as a part of the logit range."""
        result = self._run(self.float32, tokens, len(tokens)).double().numpy()
        return float(np.max(np.abs(result - expected)) / np.ptp(expected))


def randomize(model, variant):
    """Gives biases and norm weights values of their own: zeros and ones would hide mistakes."""
    generator = torch.Generator().manual_seed(variant.seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("_bias"):
            parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for part, factor in variant.scales.items():
            if part in name and (parameter.dim() >= 2 or part == "sinks"):
                parameter.data.mul_(factor)


def to_older_layout(path: pathlib.Path):
    """Rewrites config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""
    config = json.loads(path.read_text())
    before = transformers.AutoConfig.from_pretrained(path.parent).to_dict()
    rope = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    theta = rope.pop("rope_theta")
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if config["model_type"] == "gpt_neox":
        config["rotary_emb_base"] = theta
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
    else:
        config["rope_theta"] = theta
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    after = transformers.AutoConfig.from_pretrained(path.parent).to_dict()
    assert before["rope_parameters"] == after["rope_parameters"], (before, after)


def to_mxfp4(weights):
    """Blocks and scales of [..., in, out] weights: nearest e2m1 values, 32 inputs to a scale."""
    rows = weights.double().transpose(-2, -1)
    groups = rows.reshape(*rows.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2  # 4 is the largest power
    scaled = groups * torch.exp2(-exponents)[..., None]
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = (scaled.abs()[..., None] - values).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = codes[..., 0::2] + 16 * codes[..., 1::2]
    return blocks.to(torch.uint8), (exponents + 127).to(torch.uint8)


def to_mxfp4_experts(directory: pathlib.Path):
    """Rewrites a checkpoint with its experts in MXFP4, as gpt-oss is released."""
    path = directory / "model.safetensors"
    tensors = {}
    for name, tensor in load_torch(path).items():
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = to_mxfp4(tensor)
        else:
            tensors[name] = tensor
    save_torch(tensors, path, {"format": "pt"})
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_checkpoint(directory: pathlib.Path, variant: Variant):
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    torch.manual_seed(variant.seed)
    config = transformers.AutoConfig.for_model(variant.model_type, **variant.config)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, variant)
    model.to(getattr(torch, variant.dtype))
    model.config.dtype = getattr(torch, variant.dtype)
    size = {"max_shard_size": variant.shard_size} if variant.shard_size else {}
    model.save_pretrained(directory, **size)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if variant.mxfp4_experts:
        to_mxfp4_experts(directory)
    if variant.older_layout:
        to_older_layout(directory / "config.json")


def checked_positions(length):
    """The last position and a few inner ones."""
    return sorted({0, length // 3, 2 * length // 3, length - 1})


def greedy(reference, prompt):
    """64 greedy tokens and each step's lead over the second best, as a part of the logit range."""
    tokens, leads = list(prompt), []
    for _ in range(GREEDY_TOKENS):
        last = reference.logits(tokens, len(prompt))[-1]
        second, best = np.sort(last)[-2:]
        leads.append((best - second) / np.ptp(last))
        if leads[-1] <= GAP:
            return None
        tokens.append(int(np.argmax(last)))
    return tokens[len(prompt) :], leads


def find_greedy(reference, variant, length, vocab):
    """Searches random prompts of `length` tokens for a continuation without near ties."""
    for attempt in range(400):
        generator = np.random.default_rng([variant.seed, length, attempt])
        prompt = generator.integers(3, vocab, length).tolist()
        found = greedy(reference, prompt)
        if (
            found
            and len(set(found[0])) >= MIN_DISTINCT
            and reference.config.eos_token_id not in found[0]
        ):
            return prompt, found[0], found[1]
    raise SystemExit(f"{variant.name}: no prompt of {length} tokens without near ties")


def random_prompt(reference, variant, length, vocab):
    """Random tokens; of models with experts, the first whose experts are chosen clearly."""
    for attempt in range(4000):
        seed = [variant.seed, length] if attempt == 0 else [variant.seed, length, 0, attempt]
        tokens = np.random.default_rng(seed).integers(0, vocab, length).tolist()
        if reference.least_router_lead(tokens) > ROUTER_GAP:
            return tokens
    raise SystemExit(f"{variant.name}: no prompt of {length} tokens chooses its experts clearly")


def write_expected(directory: pathlib.Path, variant: Variant):
    reference = Reference(directory)
    vocab = reference.config.vocab_size
    out, worst = {}, 0.0
    for i, length in enumerate(PROMPT_LENGTHS):
        tokens = random_prompt(reference, variant, length, vocab)
        positions = checked_positions(length)
        logits = reference.logits(tokens)
        worst = max(worst, reference.float32_error(tokens, logits))
        out[f"prompt.{i}.tokens"] = np.array(tokens, np.int32)
        out[f"prompt.{i}.positions"] = np.array(positions, np.int32)
        out[f"prompt.{i}.logits"] = logits[positions]
    assert worst < FLOAT32_AGREEMENT, (variant.name, worst)
    lead = 1.0
    for i, length in enumerate(variant.greedy_prompts):
        prompt, tokens, leads = find_greedy(reference, variant, length, vocab)
        out[f"greedy.{i}.prompt"] = np.array(prompt, np.int32)
        out[f"greedy.{i}.tokens"] = np.array(tokens, np.int32)
        out[f"greedy.{i}.leads"] = np.array(leads, np.float64)
        lead = min(lead, *leads)
    # One entry only: safetensors writes several in no fixed order.
    metadata = {"format": "triphase-parity/1"}
    save_numpy(
        {k: np.ascontiguousarray(v) for k, v in out.items()},
        directory / "expected.safetensors",
        metadata,
    )
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(
        f"{variant.name:26} {size:8} bytes   float32 off by {worst:.1e}   smallest lead {lead:.1e}",
        flush=True,
    )


def check(directory: pathlib.Path):
    """Recomputes a committed fixture; returns the largest error as a part of the range."""
    reference = Reference(directory)
    expected = load_numpy(directory / "expected.safetensors")
    worst = 0.0
    for i in range(len(PROMPT_LENGTHS)):
        want = expected[f"prompt.{i}.logits"]
        tokens = expected[f"prompt.{i}.tokens"].tolist()
        got = reference.logits(tokens)[expected[f"prompt.{i}.positions"]]
        worst = max(worst, float(np.max(np.abs(got - want)) / np.ptp(want)))
    for i in range(sum(name.endswith(".leads") for name in expected)):
        found = greedy(reference, expected[f"greedy.{i}.prompt"].tolist())
        if not found or found[0] != expected[f"greedy.{i}.tokens"].tolist():
            return float("inf")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="fixtures to write or check; default: all")
    parser.add_argument("--check", action="store_true", help="recompute, change nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = [v for v in VARIANTS if not arguments.names or v.name in arguments.names]
    if not chosen:
        parser.error(f"no such fixture; known: {', '.join(v.name for v in VARIANTS)}")
    failed = False
    for variant in chosen:
        directory = ROOT / variant.name
        if arguments.check:
            error = check(directory)
            failed |= error > 1e-10
            print(f"{variant.name:26} off by {error:.1e}", flush=True)
        else:
            write_checkpoint(directory, variant)
            write_expected(directory, variant)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
