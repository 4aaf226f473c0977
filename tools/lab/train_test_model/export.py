"""Writes a checkpoint as a Hugging Face LLaMA directory, and checks it there.

Run ``python export.py --work DIR --name mha --out FOLDER``.  The weights become BF16.  With
``--check`` the folder is opened with the transformers library, whose logits and token ids
must agree with those of this folder's own model and tokenizer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from safetensors.torch import save_file

from evaluate import load_checkpoint
from model import SHAPES, Shape
from tokenizer_json import write_beside
from work import parser_of

CHECK_TEXTS = (
    "In the beginning God created the heaven and the earth.",
    "It was a fine morning, and Emma said:\n\"The secret code of Marlow is 48213.\"",
)
TOLERANCE = 1e-3


def configuration(shape: Shape) -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def tokenizer_configuration(shape: Shape) -> dict[str, object]:
    """tokenizer_config.json, as LLaMA 2 has it."""
    return {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
        "sp_model_kwargs": {},
    }


def write_json(path: Path, value: dict[str, object]) -> None:
    """Writes indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(work: Path, name: str, out: Path) -> None:
    """Writes every file of the model's directory but its README."""
    shape = SHAPES[name]
    model = load_checkpoint(work, name)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for key, value in model.state_dict().items():
        full_name = key if key.startswith("lm_head") else f"model.{key}"
        tensors[full_name] = value.bfloat16().contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write_json(out / "config.json", configuration(shape))
    write_json(
        out / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "do_sample": False},
    )
    write_json(out / "tokenizer_config.json", tokenizer_configuration(shape))
    shutil.copyfile(work / "tokenizer.model", out / "tokenizer.model")
    write_beside(out / "tokenizer.model")


def check(work: Path, name: str, out: Path) -> None:
    """Fails unless transformers computes what the checkpoint does."""
    import transformers

    reference = load_checkpoint(work, name)
    loaded = transformers.LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    heldout = np.load(work / "heldout.npy")[:1500].astype(np.int64).tolist()
    for ids in (*map(pieces.encode, CHECK_TEXTS), heldout):
        tokens = torch.tensor([[1, *ids]])
        with torch.inference_mode():
            ours, theirs = reference(tokens), loaded(tokens).logits
        difference = (ours - theirs).abs().max().item()
        print(f"{tokens.shape[1]} tokens: largest logit difference {difference:.2e}")
        if difference > TOLERANCE:
            raise SystemExit("transformers does not agree")


def main() -> None:
    """Exports, and checks if asked to."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    export(arguments.work, arguments.name, arguments.out)
    if arguments.check:
        check(arguments.work, arguments.name, arguments.out)


if __name__ == "__main__":
    main()
