"""Fields of config.json for small models of each family, for parity_variants.py."""


def decoder(hidden, heads, kv_heads, **more):
    """Fields shared by LLaMA, Mistral, Gemma and Qwen2."""
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 2 * hidden - 8,
        "num_hidden_layers": 2,
        "vocab_size": 101,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **more,
    }


def small(hidden, heads, kv_heads, **more):
    """The same with fewer weights: for families that came later."""
    sizes = {"vocab_size": 67, "intermediate_size": hidden + 12}
    return decoder(hidden, heads, kv_heads, **{**sizes, **more})


def opt(hidden, heads, **more):
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": 2 * hidden + 8,
        "num_hidden_layers": 2,
        "vocab_size": 101,
        "max_position_embeddings": 320,
        "word_embed_proj_dim": hidden,
        "init_std": 0.2,
        "dropout": 0.0,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **more,
    }


def neox(hidden, heads, rotary, **more):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rotary}
    rope.update(more.pop("rope", {}))
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 2 * hidden + 8,
        "num_hidden_layers": 2,
        "vocab_size": 101,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "rope_parameters": rope,
        **more,
    }


def falcon(hidden, heads, **more):
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": 2 * hidden + 4,
        "num_hidden_layers": 2,
        "vocab_size": 67,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def gpt2(hidden, heads, **more):
    return {
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": 2 * hidden + 4,
        "n_layer": 2,
        "n_positions": 320,
        "vocab_size": 67,
        "initializer_range": 0.2,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **more,
    }


def gpt_oss(hidden, heads, kv_heads, **more):
    fields = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20,
              **rope("yarn", 150000.0, **YARN, truncate=False), **YARN_CONTEXT, **UNTIED}
    return small(hidden, heads, kv_heads, **{**fields, **more})


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
# A ramp whose rounded ends both lie inside the 8 frequencies of head_dim 16.
YARN_RAMP = {**YARN, "beta_fast": 3.0, "beta_slow": 0.5}
YARN_CONTEXT = {"max_position_embeddings": 256}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Dynamic scaling starts beyond 64 tokens: the greedy prompts lie on both sides of it, and the
# short one's continuation grows past it without changing its base.
DYNAMIC = {"max_position_embeddings": 64}
DYNAMIC_PROMPTS = (33, 90)
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
SMALL_EMBEDDING = {"embed": 0.1}
# Gates and ups beyond their limits, and sinks that take a good part of the weights.
GPT_OSS_SCALES = {"gate_up_proj": 4.0, "down_proj": 0.3, "sinks": 4.0}
POST_NORM = {"embed": 3.0, "out_proj": 2.0, "fc2": 0.3}
