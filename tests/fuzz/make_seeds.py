#!/usr/bin/env python3
"""Makes seed inputs and dictionaries for the fuzz targets of model files.

    make_seeds.py FOLDER

Writes FOLDER/<target>/ and FOLDER/<target>.dict. Seeds come from the hostile corpus of tests/bad and
from the checkpoints of tests/fixtures/parity. Other make_*_seeds.py scripts here do the same for
other targets.
"""

import hashlib
import pathlib
import struct
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bad"))
sys.dont_write_bytecode = True

from make_corpus import build_case, load_cases  # noqa: E402

MAX_SEED = 16 << 10

WORDS = {
    "fuzz_safetensors": ["dtype", "shape", "data_offsets", "__metadata__", "F32", "F16", "BF16",
                         "I64", "F8_E4M3", "F4", "BOOL", "18446744073709551615", "[0,0]"],
    "fuzz_index": ["weight_map", "metadata", "total_size", ".safetensors", "../", "\\\\u0000"],
    "fuzz_config": [
        "model_type", "architectures", "llama", "mistral", "qwen2", "gemma", "gpt_neox", "opt",
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "ffn_dim", "vocab_size", "max_position_embeddings",
        "rope_scaling", "rope_parameters", "rope_type", "type", "factor", "linear", "dynamic",
        "yarn", "llama3", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "attention_factor", "truncate", "rope_theta", "rotary_pct",
        "rotary_emb_base", "partial_rotary_factor", "original_max_position_embeddings",
        "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
        "sliding_attention", "full_attention", "eos_token_id", "bos_token_id", "rms_norm_eps",
        "layer_norm_eps", "hidden_act", "hidden_activation", "activation_function", "gelu", "silu",
        "relu", "word_embed_proj_dim", "do_layer_norm_before", "enable_bias", "attention_bias",
        "mlp_bias", "tie_word_embeddings", "torch_dtype", "dtype", "quantization_config",
        "use_parallel_residual", "true", "false", "null", "text_config", "qwen3", "smollm3",
        "no_rope_layers", "no_rope_layer_interval", "olmo2", "olmo3", "phi3", "longrope",
        "short_factor", "long_factor", "granite", "embedding_multiplier", "residual_multiplier",
        "attention_multiplier", "logits_scaling", "ministral", "glm", "glm4", "stablelm",
        "use_qkv_bias", "starcoder2", "falcon", "multi_query", "new_decoder_architecture",
        "num_kv_heads", "gpt2", "n_embd", "n_layer", "n_head", "n_positions", "gemma2",
        "attn_logit_softcapping", "gemma3_text", "query_pre_attn_scalar", "rope_local_base_freq",
        "mixtral", "num_local_experts", "num_experts_per_tok", "qwen3_moe", "num_experts",
        "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
        "seed_oss", "attention_out_bias", "internlm3", "qkv_bias", "ernie4_5", "use_bias",
        "cohere", "logit_scale", "cohere2", "sliding_window_pattern", "rope_gptj",
        "exaone4", "olmo", "clip_qkv"],
}


class Seeds:
    def __init__(self, folder):
        self.folder = folder

    def add(self, target, content):
        if not 0 < len(content) <= MAX_SEED:
            return
        place = self.folder / target
        place.mkdir(parents=True, exist_ok=True)
        (place / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)

    def add_model(self, folder):
        for path in sorted(folder.iterdir()):
            if not path.is_file():
                continue
            if path.stat().st_size > 64 << 20:
                continue
            content = path.read_bytes()
            if path.name == "config.json":
                self.add("fuzz_config", content)
                generation = folder / "generation_config.json"
                if generation.is_file():
                    self.add("fuzz_config", content + b"\0" + generation.read_bytes())
            elif path.name.endswith(".index.json"):
                self.add("fuzz_index", content)
            elif path.suffix == ".safetensors" and path.name != "expected.safetensors":
                self.add("fuzz_safetensors", b"\0" + content)
                length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
                if 0 < length <= len(content) - 8:
                    self.add("fuzz_safetensors", b"\xff" + content[8: 8 + length])


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    seeds = Seeds(pathlib.Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as scratch:
        for case in load_cases():
            folder = pathlib.Path(scratch) / case.id
            build_case(case, folder)
            if (folder / "model").is_dir():
                seeds.add_model(folder / "model")
    for folder in sorted((HERE.parent / "fixtures" / "parity").iterdir()):
        if folder.is_dir():
            seeds.add_model(folder)
    for target, words in WORDS.items():
        lines = [f'"{word}"' for word in words] + [f'"\\"{word}\\":"' for word in words]
        (seeds.folder / f"{target}.dict").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
