"""The checkpoints of tests/fixtures/parity: one entry per directory (see make_parity_fixtures.py).

Between them they cover, for every family, odd head counts, grouped-query attention with groups of
1, 2, 4 and 8, biases, tied and untied embeddings, every RoPE scaling, sliding windows shorter than
the longest prompt, 16-bit weights, shards, and both layouts of config.json (transformers 5 writes
rope_parameters, transformers 4 wrote rope_theta and rope_scaling).
"""

import dataclasses

from parity_configs import (decoder, DYNAMIC, DYNAMIC_PROMPTS, falcon, gpt2, gpt_oss, GPT_OSS_SCALES, LLAMA3, neox,
                            opt, POST_NORM, rope, small, SMALL_EMBEDDING, TIED, UNTIED, YARN, YARN_CONTEXT, YARN_RAMP)


@dataclasses.dataclass
class Variant:
    name: str
    model_type: str
    config: dict
    dtype: str = "float32"
    shard_size: str = ""
    older_layout: bool = False
    mxfp4_experts: bool = False
    greedy_prompts: tuple = (7, 33)
    # Factors on matrices whose name contains the key, so that greedy text does not collapse to one
    # token (tied embeddings and post-norm models do, with every matrix of one scale).
    scales: dict = dataclasses.field(default_factory=dict)
    seed: int = 0


VARIANTS = [
    # OPT: learned positions, biases, ReLU; 350m's norms after the sums and its projections.
    Variant("opt-tied", "opt", opt(48, 3)),
    Variant("opt-350m", "opt", opt(48, 4, do_layer_norm_before=False, word_embed_proj_dim=24), scales=POST_NORM),
    Variant("opt-projected", "opt", opt(40, 5, word_embed_proj_dim=56, **UNTIED)),
    Variant("opt-post-norm", "opt", opt(32, 2, do_layer_norm_before=False, num_hidden_layers=3),
            scales={"fc2": 0.1, "fc1": 2.0, "embed": 4.0, "v_proj": 2.0, "q_proj": 2.0}),
    Variant("opt-no-bias", "opt", opt(48, 6, enable_bias=False, activation_function="gelu")),
    Variant("opt-f16", "opt", opt(64, 4), dtype="float16"),
    # LLaMA 1, 2 and 3.
    Variant("llama1-mha", "llama", decoder(40, 5, 5, **UNTIED), older_layout=True),
    Variant("llama1-linear", "llama", decoder(48, 3, 3, **UNTIED, **rope("linear", factor=2.5)), older_layout=True),
    Variant("llama2-gqa8-biases", "llama", decoder(64, 8, 1, attention_bias=True, mlp_bias=True, **UNTIED)),
    Variant("llama2-dynamic", "llama", decoder(48, 6, 3, **UNTIED, **rope("dynamic", factor=4.0), **DYNAMIC),
            older_layout=True, greedy_prompts=DYNAMIC_PROMPTS),
    Variant("llama2-yarn", "llama",
            decoder(48, 4, 2, head_dim=16, **UNTIED, **rope("yarn", **YARN_RAMP), **YARN_CONTEXT)),
    Variant("llama2-yarn-mscale", "llama",
            decoder(48, 3, 3, **UNTIED, **rope("yarn", **YARN, mscale=1.5, mscale_all_dim=0.7, truncate=False),
                    **YARN_CONTEXT)),
    Variant("llama2-yarn-attention", "llama",
            decoder(48, 4, 1, **UNTIED, **rope("yarn", **YARN, attention_factor=1.25), **YARN_CONTEXT),
            older_layout=True),
    Variant("llama3-gqa4", "llama", decoder(48, 4, 1, **TIED, **rope("llama3", 500000.0, **LLAMA3)),
            older_layout=True),
    Variant("llama3-gqa2-head-dim", "llama",
            decoder(48, 6, 3, head_dim=16, num_hidden_layers=3, **UNTIED, **rope("llama3", 500000.0, **LLAMA3))),
    Variant("llama3-bf16", "llama", decoder(64, 8, 2, **UNTIED, **rope("llama3", 500000.0, **LLAMA3)),
            dtype="bfloat16"),
    Variant("llama2-f16-sharded", "llama", decoder(64, 4, 4, **UNTIED),
            dtype="float16", shard_size="40KB", older_layout=True),
    # Mistral: window 0 (none) and shorter than the prompts.
    Variant("mistral-window", "mistral", decoder(64, 8, 2, sliding_window=24, **UNTIED), older_layout=True),
    Variant("mistral-full", "mistral", decoder(48, 6, 3, head_dim=12, sliding_window=None, **UNTIED)),
    Variant("mistral-window-gqa8-bf16", "mistral", decoder(64, 8, 1, sliding_window=5, **UNTIED), dtype="bfloat16"),
    Variant("mistral-yarn", "mistral",
            decoder(40, 5, 5, sliding_window=None, **TIED, **rope("yarn", 1e6, **YARN), **YARN_CONTEXT)),
    # GPT-NeoX and Pythia.
    Variant("neox-parallel", "gpt_neox", neox(48, 3, 0.25), older_layout=True),
    Variant("neox-sequential", "gpt_neox", neox(48, 3, 1.0, use_parallel_residual=False)),
    Variant("neox-half-rotary-tied", "gpt_neox", neox(40, 5, 0.5, hidden_act="gelu_new", **TIED)),
    Variant("neox-linear-no-bias", "gpt_neox",
            neox(48, 6, 0.5, attention_bias=False, use_parallel_residual=False,
                 rope={"rope_type": "linear", "factor": 3.0})),
    Variant("neox-dynamic-f16", "gpt_neox",
            neox(64, 4, 0.5, **DYNAMIC, rope={"rope_type": "dynamic", "factor": 4.0}),
            dtype="float16", greedy_prompts=DYNAMIC_PROMPTS, older_layout=True),
    # Gemma: (1 + w) norms, scaled embeddings, head_dim free of hidden_size.
    Variant("gemma-mqa", "gemma", decoder(40, 8, 1, head_dim=8, vocab_size=131, **TIED), scales=SMALL_EMBEDDING),
    Variant("gemma-gqa2", "gemma", decoder(48, 6, 3, head_dim=16, **TIED), older_layout=True, scales=SMALL_EMBEDDING),
    Variant("gemma-mha-sharded", "gemma", decoder(40, 3, 3, head_dim=20, **TIED),
            shard_size="60KB", scales=SMALL_EMBEDDING),
    Variant("gemma-bf16", "gemma", decoder(64, 4, 1, head_dim=16, **TIED), dtype="bfloat16", scales=SMALL_EMBEDDING),
    # Qwen2: biases on q, k and v only; the window may spare the first layers.
    Variant("qwen2-tied", "qwen2", decoder(48, 4, 2, **TIED, **rope("default", 1e6)), older_layout=True),
    Variant("qwen2-window-gqa8", "qwen2",
            decoder(48, 8, 1, num_hidden_layers=3, use_sliding_window=True, sliding_window=20, max_window_layers=1,
                    **UNTIED)),
    Variant("qwen2-yarn", "qwen2", decoder(48, 3, 3, **UNTIED, **rope("yarn", 1e6, **YARN), **YARN_CONTEXT),
            older_layout=True),
    Variant("qwen2-bf16", "qwen2", decoder(64, 4, 1, **UNTIED, **rope("default", 1e6)), dtype="bfloat16"),
    # Qwen3: each head's queries and keys have a norm; head_dim is free of hidden_size.
    Variant("qwen3-tied", "qwen3", small(24, 4, 2, head_dim=8, **TIED, **rope("default", 1e6)), older_layout=True),
    Variant("qwen3-window-biases", "qwen3",
            small(24, 3, 1, head_dim=12, num_hidden_layers=3, attention_bias=True, use_sliding_window=True,
                  sliding_window=20, max_window_layers=2, **UNTIED),
            dtype="bfloat16"),
    # Seed-OSS: Qwen2 with biases to choose and a head_dim of its own.
    Variant("seedoss-biases", "seed_oss",
            small(24, 3, 1, head_dim=10, attention_out_bias=True, mlp_bias=True, **UNTIED), older_layout=True),
    # InternLM3: LLaMA with a head_dim of its own.
    Variant("internlm3-biases", "internlm3",
            small(24, 2, 1, head_dim=8, qkv_bias=True, bias=True, **UNTIED, **rope("default", 5e7))),
    # ERNIE 4.5: interleaved rotary positions.
    Variant("ernie-biases", "ernie4_5", small(24, 3, 1, head_dim=8, use_bias=True, **TIED),
            older_layout=True, scales=SMALL_EMBEDDING),
    # Cohere: parallel branches behind one LayerNorm without bias, scaled logits; in Cohere 2 layers
    # without windows rotate nothing.
    Variant("cohere-biases", "cohere", small(24, 3, 1, attention_bias=True, logit_scale=0.25, **TIED),
            older_layout=True, scales=SMALL_EMBEDDING),
    Variant("cohere2-window", "cohere2",
            small(24, 3, 1, num_hidden_layers=3, sliding_window=20, sliding_window_pattern=2, **TIED),
            scales=SMALL_EMBEDDING),
    # SmolLM3: layers that rotate nothing; windows in those alone.
    Variant("smollm3-tied", "smollm3", small(24, 4, 2, num_hidden_layers=3, no_rope_layer_interval=3, **TIED),
            older_layout=True),
    Variant("smollm3-window-biases", "smollm3",
            small(24, 3, 1, num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=20,
                  attention_bias=True, mlp_bias=True, **UNTIED),
            dtype="bfloat16"),
    # OLMo: LayerNorm without weights.
    Variant("olmo1-biases", "olmo", small(24, 3, 1, attention_bias=True, **UNTIED), older_layout=True),
    # OLMo 2 and 3: norms on what the branches give, and on whole queries and keys; in OLMo 3 layers
    # with windows have rotary positions of their own.
    Variant("olmo2-mha", "olmo2", small(24, 3, 3, **UNTIED), older_layout=True),
    Variant("olmo2-gqa2-biases", "olmo2", small(24, 4, 2, attention_bias=True, **UNTIED), scales={"embed": 6.0}),
    Variant("olmo3-window-yarn", "olmo3",
            small(24, 4, 2, num_hidden_layers=4, sliding_window=20,
                  rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, **YARN},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
                  max_position_embeddings=256, **UNTIED)),
    # EXAONE 4: as OLMo 2 but for norms of heads; layers without windows rotate nothing, where others
    # have one.
    Variant("exaone4-full", "exaone4",
            small(24, 3, 1, sliding_window=None, layer_types=["full_attention"] * 2, **UNTIED), older_layout=True),
    Variant("exaone4-window", "exaone4",
            small(24, 2, 1, num_hidden_layers=3, sliding_window=20, sliding_window_pattern=2, **UNTIED)),
    # Phi-3 and Phi-4-mini: fused projections, longrope, partial rotary positions.
    Variant("phi3-window", "phi3", small(24, 3, 3, sliding_window=24, **UNTIED), older_layout=True),
    Variant("phi3-longrope-partial", "phi3",
            small(32, 2, 1, **rope("longrope", partial_rotary_factor=0.75,
                                   short_factor=[1.0, 1.1, 1.25, 1.5, 2.0, 2.5],
                                   long_factor=[1.0, 1.5, 2.5, 4.0, 7.0, 9.0]),
                  original_max_position_embeddings=64, max_position_embeddings=256, **TIED),
            greedy_prompts=DYNAMIC_PROMPTS),
    # Granite 3: factors on embeddings, branches, scores and logits.
    Variant("granite-factors", "granite",
            small(24, 4, 2, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.25,
                  logits_scaling=4.0, **UNTIED),
            older_layout=True),
    # Ministral: layers with and without windows.
    Variant("ministral-windows", "ministral",
            small(24, 4, 1, head_dim=8, num_hidden_layers=3, sliding_window=20,
                  layer_types=["sliding_attention", "full_attention", "sliding_attention"], **UNTIED)),
    # GLM-4: neighbouring channels rotate together, in half of each head; glm4 has norms on what the
    # branches give besides.
    Variant("glm-partial", "glm", small(24, 3, 1, head_dim=16, **UNTIED)),
    Variant("glm4-norms", "glm4", small(24, 4, 2, head_dim=12, **UNTIED), dtype="bfloat16"),
    # StableLM 2: LayerNorm and a gated MLP; parallel branches share one norm.
    Variant("stablelm-sequential", "stablelm", small(32, 2, 1, use_qkv_bias=True, **UNTIED)),
    Variant("stablelm-parallel", "stablelm",
            small(24, 3, 3, partial_rotary_factor=0.5, use_parallel_residual=True, **UNTIED)),
    Variant("starcoder2-window", "starcoder2", small(24, 4, 2, sliding_window=24, **TIED)),
    Variant("falcon-multi-query", "falcon", falcon(24, 3)),
    Variant("falcon-groups", "falcon", falcon(32, 4, new_decoder_architecture=True, num_kv_heads=2)),
    Variant("gpt2-tied", "gpt2", gpt2(24, 3), scales={"wte": 0.3, "c_proj": 2.0, "c_attn": 2.0, "c_fc": 2.0}),
    # Gemma 3: local layers with rotary positions of their own, norms of heads, before and after the
    # branches. Gemma 2: soft caps of scores and logits.
    Variant("gemma3-local", "gemma3_text",
            small(24, 4, 2, head_dim=8, num_hidden_layers=3, sliding_window=20,
                  layer_types=["sliding_attention", "sliding_attention", "full_attention"], query_pre_attn_scalar=12,
                  rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}, **TIED),
            scales=SMALL_EMBEDDING),
    Variant("gemma2-caps", "gemma2",
            small(24, 4, 2, head_dim=8, sliding_window=20, query_pre_attn_scalar=12, attn_logit_softcapping=4.0,
                  final_logit_softcapping=6.0, **TIED),
            scales=SMALL_EMBEDDING),
    # Ministral 3, up to the context from which on its queries would be scaled.
    Variant("ministral3-yarn", "ministral3",
            small(24, 4, 2, head_dim=8, **UNTIED,
                  **rope("yarn", factor=4.0, original_max_position_embeddings=256, beta_fast=3.0, beta_slow=0.5,
                         mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
    # Mixtral and Qwen3-MoE: a router chooses each token's experts. Qwen3-MoE may have layers without
    # experts, and may leave the chosen shares as they are.
    Variant("mixtral-experts", "mixtral",
            small(24, 4, 2, num_local_experts=5, num_experts_per_tok=2, **UNTIED, **rope("default", 1e6)),
            older_layout=True),
    Variant("mixtral-window-bf16", "mixtral",
            small(24, 3, 1, num_local_experts=3, num_experts_per_tok=1, sliding_window=20, **TIED),
            dtype="bfloat16", scales=SMALL_EMBEDDING),
    Variant("qwen3-moe-experts", "qwen3_moe",
            small(24, 4, 2, head_dim=8, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
                  norm_topk_prob=True, **UNTIED, **rope("default", 1e6)),
            older_layout=True),
    Variant("qwen3-moe-mixed", "qwen3_moe",
            small(24, 4, 2, head_dim=8, num_hidden_layers=3, num_experts=4, num_experts_per_tok=2,
                  moe_intermediate_size=20, norm_topk_prob=False, mlp_only_layers=[1], attention_bias=True,
                  **UNTIED)),
    # gpt-oss: sinks, biases throughout, experts with clamped gates, windows in every other layer.
    Variant("gptoss-windows", "gpt_oss", gpt_oss(24, 4, 2, head_dim=8, num_local_experts=5),
            older_layout=True, scales=GPT_OSS_SCALES),
    Variant("gptoss-mxfp4", "gpt_oss", gpt_oss(32, 8, 1, head_dim=8, intermediate_size=64),
            dtype="bfloat16", mxfp4_experts=True, scales={**GPT_OSS_SCALES, "o_proj": 0.5}),
]

# A seed belongs to a place in the list: add new variants at the end.
for _seed, _variant in enumerate(VARIANTS, start=1):
    _variant.seed = _seed
