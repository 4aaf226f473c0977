"""What a case of the hostile corpus is, and the tiny valid model every case starts from.

A case table is a file cases_*.py beside this one with a function cases() that returns a list of
Case. run_bad.py runs every case of every table. Standard library only.
"""

import dataclasses
import json
import pathlib
import random
import struct

PROMPTS = (
    b'{"id": "a", "prompt_tokens": [1, 2, 3], "max_tokens": 2}\n'
    b'{"id": "b", "prompt_tokens": [4, 5], "max_tokens": 2}\n'
)
INDEX = "model.safetensors.index.json"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1}


@dataclasses.dataclass
class Case:
    """One row: what is damaged and what must happen.

    `build` gets the case's own folder, which already holds model/ (the tiny valid model) and
    prompts.jsonl, and damages it. In `args`, MODEL, PROMPTS and OUT stand for the paths; the
    default is a plain `run`. `before` lists command lines that run first, whatever becomes of them.
    `stderr` and `stdout` list texts that must appear there, `absent`
    texts that must not appear on stderr. With exit 0 or 1 the output must exist and hold `records` lines.
    """

    id: str
    build: object
    exit: int
    stderr: tuple = ()
    stdout: tuple = ()
    absent: tuple = ()
    output: tuple = ()  # texts that must appear in the output file
    args: tuple = ("run", "--model", "MODEL", "--prompts", "PROMPTS", "--output", "OUT")
    extra: tuple = ()
    before: tuple = ()
    env: dict = dataclasses.field(default_factory=dict)
    limits: dict = dataclasses.field(default_factory=dict)  # {resource.RLIMIT_...: soft and hard limit}
    sanitized: bool = True  # False where a sanitizer does not survive the limits
    records: int = 2
    leaves_output: bool = False  # the failure may come after OUT.part was created
    seconds: float = 30.0
    megabytes: int = 1024


def llama_config(**changes):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    config.update(changes)
    return config


def llama_shapes(config):
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": [vocab, hidden]}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = [hidden]
        shapes[prefix + "self_attn.q_proj.weight"] = [q, hidden]
        shapes[prefix + "self_attn.k_proj.weight"] = [kv, hidden]
        shapes[prefix + "self_attn.v_proj.weight"] = [kv, hidden]
        shapes[prefix + "self_attn.o_proj.weight"] = [hidden, q]
        shapes[prefix + "post_attention_layernorm.weight"] = [hidden]
        shapes[prefix + "mlp.gate_proj.weight"] = [ffn, hidden]
        shapes[prefix + "mlp.up_proj.weight"] = [ffn, hidden]
        shapes[prefix + "mlp.down_proj.weight"] = [hidden, ffn]
    shapes["model.norm.weight"] = [hidden]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [vocab, hidden]
    return shapes


def opt_config(**changes):
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 16,
        "ffn_dim": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 16,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "bos_token_id": 2,
        "eos_token_id": 2,
    }
    config.update(changes)
    return config


def opt_shapes(config):
    hidden, ffn, embed = config["hidden_size"], config["ffn_dim"], config["word_embed_proj_dim"]
    base = "model.decoder."
    shapes = {
        base + "embed_tokens.weight": [config["vocab_size"], embed],
        base + "embed_positions.weight": [config["max_position_embeddings"] + 2, hidden],
    }

    def linear(name, rows, cols):
        shapes[name + ".weight"] = [rows, cols]
        shapes[name + ".bias"] = [rows]

    def norm(name):
        shapes[name + ".weight"] = [hidden]
        shapes[name + ".bias"] = [hidden]

    for layer in range(config["num_hidden_layers"]):
        prefix = f"{base}layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(prefix + "self_attn." + part, hidden, hidden)
        norm(prefix + "self_attn_layer_norm")
        linear(prefix + "fc1", ffn, hidden)
        linear(prefix + "fc2", hidden, ffn)
        norm(prefix + "final_layer_norm")
    if config["do_layer_norm_before"]:
        norm(base + "final_layer_norm")
    if embed != hidden:
        shapes[base + "project_in.weight"] = [hidden, embed]
        shapes[base + "project_out.weight"] = [embed, hidden]
    return shapes


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def random_f32(shape, generator):
    return struct.pack(
        f"<{elements(shape)}f", *(generator.uniform(-0.3, 0.3) for _ in range(elements(shape)))
    )


def random_tensors(shapes):
    """{name: (dtype, shape, bytes)} with reproducible contents."""
    generator = random.Random(1)
    return {name: ("F32", shape, random_f32(shape, generator)) for name, shape in shapes.items()}


def header_of(tensors):
    """The header as a dictionary, and the data."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    return header, data


def with_length(header_bytes, data=b""):
    return struct.pack("<Q", len(header_bytes)) + header_bytes + data


def safetensors(tensors):
    header, data = header_of(tensors)
    return with_length(json.dumps(header).encode(), data)


class ModelFolder:
    """The model/ folder of a case, to be damaged."""

    def __init__(self, folder: pathlib.Path):
        self.path = folder

    def write(self, name, content):
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def remove(self, name):
        (self.path / name).unlink()

    def config(self, config):
        self.write("config.json", json.dumps(config))

    def tensors(self, tensors):
        self.write("model.safetensors", safetensors(tensors))

    def llama(self, **changes):
        config = llama_config(**changes)
        self.config(config)
        self.tensors(random_tensors(llama_shapes(config)))

    def opt(self, **changes):
        config = opt_config(**changes)
        self.config(config)
        self.tensors(random_tensors(opt_shapes(config)))

    def shards(self, parts, weight_map=None, metadata=None):
        """`parts`: {file: tensors}. Replaces model.safetensors."""
        if (self.path / "model.safetensors").exists():
            self.remove("model.safetensors")
        listed = {}
        for file, tensors in parts.items():
            self.write(file, safetensors(tensors))
            listed.update(dict.fromkeys(tensors, file))
        index = {"metadata": metadata or {}, "weight_map": weight_map or listed}
        self.write(INDEX, json.dumps(index))
