"""A LLaMA-style decoder whose parameter names are those of Hugging Face's LlamaForCausalLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int = 2048
    rope_theta: float = 1e7
    norm_eps: float = 1e-5


SHAPES = {
    "mha": Shape(2048, 256, 512, layers=6, heads=4, kv_heads=4, head_dim=64),
    "gqa": Shape(2048, 256, 384, layers=6, heads=8, kv_heads=2, head_dim=64),
}

EMBEDDING_STD = 0.5
FINAL_NORM = 0.15
KeyValue = tuple[Tensor, Tensor]


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """The cosine and sine of every position, [context, head_dim], halves repeated."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.context).float(), shape.rope_theta**-steps)
    return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split convention of Hugging Face's LLaMA."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learnt scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Causal attention whose query heads share key and value heads in groups."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """[batch, length, heads * head_dim] to [batch, heads, length, head_dim]."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: KeyValue | None,
        visible: Tensor | None,
    ) -> tuple[Tensor, KeyValue]:
        query = rotate(self.split(self.q_proj(x)), cos, sin)
        key = rotate(self.split(self.k_proj(x)), cos, sin)
        value = self.split(self.v_proj(x))
        query, key = query.to(value.dtype), key.to(value.dtype)
        if past is not None:
            key = torch.cat((past[0], key), 2)
            value = torch.cat((past[1], value), 2)
        group = self.shape.heads // self.shape.kv_heads
        mixed = F.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1) if group > 1 else key,
            value.repeat_interleave(group, 1) if group > 1 else value,
            attn_mask=visible,
            is_causal=past is None and visible is None,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), (key, value)


class MLP(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: KeyValue | None,
        visible: Tensor | None,
    ) -> tuple[Tensor, KeyValue]:
        mixed, cache = self.self_attn(self.input_layernorm(x), cos, sin, past, visible)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Llama(nn.Module):
    """The decoder.  ``forward`` is the training pass, ``step`` the cached one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Small normal weights; the projections into the residual stream start at zero."""
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif name == "embed_tokens.weight" or name == "lm_head.weight":
                nn.init.normal_(parameter, std=EMBEDDING_STD)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        nn.init.constant_(self.norm.weight, FINAL_NORM)

    def head(self, x: Tensor) -> Tensor:
        """Final norm and projection onto the vocabulary."""
        return self.lm_head(self.norm(x))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of every position of ids, [batch, length]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x, _ = layer(x, cos, sin, None, None)
        return self.head(x)

    def step(
        self, ids: Tensor, caches: list[KeyValue] | None, visible: Tensor | None = None
    ) -> tuple[Tensor, list[KeyValue]]:
        """Logits of the last of ids, after the cached positions; visible masks the keys."""
        start = caches[0][0].shape[2] if caches else 0
        cos, sin = self.cos[start : start + ids.shape[1]], self.sin[start : start + ids.shape[1]]
        x = self.embed_tokens(ids)
        updated = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, cos, sin, caches[number] if caches else None, visible)
            updated.append(cache)
        return self.head(x[:, -1]), updated
