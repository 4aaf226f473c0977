"""Rows M (weight files) and C (config files) of the hostile corpus.

Rows that need no damaged directory are tested elsewhere: M34 (a file shortened while it is read) in
tests/unit/models/safetensors_test.cpp; M30 cannot occur, because weights keep their type.
"""

import json
import os
import struct

from bad_case import (Case, INDEX, ModelFolder, header_of, llama_config, llama_shapes,
                      random_tensors, safetensors, with_length)

ST = "model.safetensors"
INSPECT = ("inspect", "--model", "MODEL")


def tensors():
    return random_tensors(llama_shapes(llama_config()))


def weights(content):
    """A case whose model.safetensors is `content` (bytes, or a function without arguments)."""
    return lambda folder: ModelFolder(folder / "model").write(
        ST, content() if callable(content) else content)


def header(change):
    """A case whose header is edited: `change` gets the dictionary and returns text, or edits it."""

    def build(folder):
        head, data = header_of(tensors())
        text = change(head)
        text = json.dumps(head) if text is None else text
        ModelFolder(folder / "model").write(
            ST, with_length(text if isinstance(text, bytes) else text.encode(), data))

    return build


def field(key, value, name="model.norm.weight"):
    return header(lambda head: head[name].__setitem__(key, value))


def raw_field(key, value, name="model.norm.weight"):
    """Like field, with raw JSON text for the value."""

    def change(head):
        head[name][key] = "@"
        return json.dumps(head).replace('"@"', value)

    return header(change)


def link_to_itself(folder):
    (folder / "loop").symlink_to("loop")


def changed(edit):
    """A case whose tensors are edited: `edit` gets {name: (dtype, shape, bytes)}."""

    def build(folder):
        content = tensors()
        edit(content)
        ModelFolder(folder / "model").tensors(content)

    return build


def config(**changes):
    """A case whose config.json has changed fields; None removes one."""

    def build(folder):
        values = llama_config()
        for key, value in changes.items():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        ModelFolder(folder / "model").config(values)

    return build


def config_text(text):
    return lambda folder: ModelFolder(folder / "model").write("config.json", text)


def model(method, **changes):
    return lambda folder: getattr(ModelFolder(folder / "model"), method)(**changes)


def split(weight_map=None, drop=None, both=False, mixed=False, shard_name="b.safetensors"):
    """The model as two shards a.safetensors and b.safetensors."""

    def build(folder):
        content = tensors()
        names = sorted(content)
        first = {name: content[name] for name in names[: len(names) // 2]}
        second = {name: content[name] for name in names[len(names) // 2:]}
        if mixed:
            for name, (dtype, shape, data) in list(second.items()):
                values = struct.unpack(f"<{len(data) // 4}f", data)
                second[name] = ("F16", shape, struct.pack(f"<{len(values)}e", *values))
        if both:
            second[names[0]] = content[names[0]]
        target = ModelFolder(folder / "model")
        target.shards({"a.safetensors": first, "b.safetensors": second})
        listed = {name: "a.safetensors" for name in first}
        listed.update({name: shard_name for name in second if name not in first})
        listed.update(weight_map or {})
        target.write(INDEX, json.dumps({"metadata": {}, "weight_map": listed}))
        if drop:
            target.remove(drop)

    return build


def edit(name, content):
    return changed(lambda held: held.__setitem__(name, content))


def poison(held, layer=1):
    name = f"model.layers.{layer}.mlp.up_proj.weight"
    dtype, shape, data = held[name]
    held[name] = (
        dtype, shape, data[:40] + struct.pack("<f", float("nan")) + data[44:])


def replace_by_fifo(folder):
    (folder / "model" / ST).unlink()
    os.mkfifo(folder / "model" / ST)


def replace_by_folder(folder):
    (folder / "model" / ST).unlink()
    (folder / "model" / ST).mkdir()


def replace_by_device(folder):
    (folder / "model" / ST).unlink()
    (folder / "model" / ST).symlink_to("/dev/zero")


def through_links(folder):
    """As in the Hub's cache: links into a folder of blobs."""
    blob = folder / "blobs" / "0123"
    blob.parent.mkdir()
    (folder / "model" / ST).rename(blob)
    (folder / "model" / ST).symlink_to("../blobs/0123")


def only(name, content=b"x"):
    def build(folder):
        target = ModelFolder(folder / "model")
        target.remove(ST)
        target.write(name, content)

    return build


def overlapping(folder):
    head = {f"t{i}": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} for i in range(100_000)}
    ModelFolder(folder / "model").write(ST, with_length(json.dumps(head).encode(), b"\0" * 64))


def many_tensors(folder):
    """850,000 tensors in a header of 93.5 MB; all but the model's own are superfluous."""
    head, data = header_of(tensors())
    parts = [json.dumps(head)[1:-1]]
    end = len(data)
    for i in range(850_000 - len(head)):
        name = f"superfluous.{i:06d}".ljust(48, "x")
        parts.append(f'"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[{end},{end}]}}')
    text = "{" + ",".join(parts)
    text += " " * (93_500_000 - len(text) - 1) + "}"
    ModelFolder(folder / "model").write(ST, with_length(text.encode(), data))


def no_weights(name):
    return lambda held: held.pop(name)


def several_gone(held):
    for name in [name for name in held if ".layers.1." in name]:
        held.pop(name)


def tied_with_head(folder):
    content = tensors()
    target = ModelFolder(folder / "model")
    target.config(llama_config(tie_word_embeddings=True))
    target.tensors(content)


def other_dtype(folder):
    ModelFolder(folder / "model").config(llama_config(torch_dtype="bfloat16"))


def generation(text):
    return lambda folder: ModelFolder(folder / "model").write("generation_config.json", text)


def weight_cases():
    norm = "model.norm.weight"
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456789\n"
    good = safetensors(tensors())
    return [
        Case("M0-valid", lambda folder: None, 0),
        Case("M1-empty", weights(b""), 3, ("E-ST-LENGTH", "0 bytes", "at least 8")),
        Case("M1-seven-bytes", weights(b"1234567"), 3, ("E-ST-LENGTH", "7 bytes")),
        Case("M2-header-above-limit", weights(struct.pack("<Q", 100_000_001) + b"{}"), 3,
             ("E-ST-LENGTH", "100000001")),
        Case("M3-length-2-64", weights(b"\xff" * 8 + b"{}"), 3,
             ("E-ST-LENGTH", "18446744073709551615")),
        Case("M3-length-plus-8-wraps", weights(struct.pack("<Q", 2**64 - 8) + b"{}"), 3,
             ("E-ST-LENGTH",)),
        Case("M4-longer-than-file", weights(struct.pack("<Q", 500) + b"{}"), 3,
             ("E-ST-LENGTH", "500, and 2 bytes follow")),
        Case("M5-lfs-pointer", weights(lfs), 3, ("E-ST-LFS", "git lfs pull")),
        Case("M6-html", weights(b"<!DOCTYPE html><html>Not found</html>"), 3, ("web page",)),
        Case("M6-zip", weights(b"PK\x03\x04" + b"\0\0\x08\x08" * 30), 3,
             ("zip", "convert_to_safetensors")),
        Case("M6-pickle", weights(b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), 3,
             ("pickle",)),
        Case("M6-gguf", weights(b"GGUF\x03\0\0\0" + b"\x01\x02\0\0\0\0\0\0"), 3, ("GGUF",)),
        Case("M6-incomplete", only("model.safetensors.incomplete"), 3,
             ("E-ST-NONE", "did not finish")),
        Case("M6-only-bin", only("pytorch_model.bin"), 3,
             ("E-ST-NONE", "tools/convert_to_safetensors.py")),
        Case("M6-nothing", lambda folder: (folder / "model" / ST).unlink(), 3, ("E-ST-NONE",)),
        Case("M7-not-utf8", header(lambda h: b'{"\xff":1}'), 3, ("E-ST-JSON", "byte")),
        Case("M7-not-json", header(lambda h: '{"a":}'), 3, ("E-ST-JSON", "byte")),
        Case("M7-trailing-garbage", header(lambda h: json.dumps(h) + "x"), 3, ("E-ST-JSON",)),
        Case("M7-bom", header(lambda h: b"\xef\xbb\xbf" + json.dumps(h).encode()), 3,
             ("E-ST-JSON",)),
        Case("M7-leading-space", header(lambda h: " " + json.dumps(h)), 3, ("E-ST-JSON",)),
        Case("M7-trailing-space", header(lambda h: json.dumps(h) + " \n\t "), 0),
        Case("M8-array", header(lambda h: "[]"), 3, ("E-ST-JSON",)),
        Case("M8-string", header(lambda h: '"x"'), 3, ("E-ST-JSON",)),
        Case("M8-number", header(lambda h: "5"), 3, ("E-ST-JSON",)),
        Case("M9-duplicate-name",
             header(lambda h: json.dumps(h)[:-1] + f', "{norm}": {json.dumps(h[norm])}}}'), 3,
             ("E-ST-DUPLICATE", norm)),
        Case("M10-unknown-dtype", field("dtype", "F12"), 3, ("E-ST-DTYPE", "F12")),
        Case("M11-f64-needed", edit(norm, ("F64", [16], b"\0" * 128)), 3,
             ("E-ST-DTYPE", "F64", "F16, BF16 or F32")),
        Case("M11-f8-needed", edit(norm, ("F8_E4M3", [16], b"\0" * 16)), 3, ("F8_E4M3",)),
        Case("M11-unneeded-i64", edit("steps", ("I64", [1], b"\0" * 8)), 0, ("steps",)),
        Case("M12-product-overflow", field("shape", [2, 2**64 - 2]), 3, ("E-ST-SHAPE", norm)),
        Case("M12-beyond-64-bits", field("shape", [2**64]), 3, ("E-ST-HEADER", norm)),
        Case("M13-negative", field("shape", [-16]), 3, ("E-ST-HEADER", "shape", "-16")),
        Case("M13-float", raw_field("shape", "[16.0]"), 3, ("E-ST-HEADER", "16.0")),
        Case("M13-exponent", raw_field("shape", "[1e3]"), 3, ("E-ST-HEADER", "1e3")),
        Case("M13-string", field("shape", ["16"]), 3, ("E-ST-HEADER", "shape")),
        Case("M13-nested", field("shape", [[16]]), 3, ("E-ST-HEADER", "shape")),
        Case("M13-offset-float", raw_field("data_offsets", "[0.0, 64]"), 3,
             ("E-ST-HEADER", "data_offsets")),
        Case("M14-rank-9", field("shape", [1] * 8 + [16]), 3, ("E-ST-LIMIT",)),
        Case("M14-million-dimensions", field("shape", [1] * 1_000_000), 3, ("E-ST-LIMIT",)),
        Case("M15-one-offset", field("data_offsets", [0]), 3, ("E-ST-OFFSETS",)),
        Case("M15-three-offsets", field("data_offsets", [0, 64, 64]), 3, ("E-ST-OFFSETS",)),
        Case("M15-begin-after-end", field("data_offsets", [64, 0]), 3, ("E-ST-OFFSETS",)),
        Case("M16-end-outside", header(lambda h: h.update(
            {"z": {"dtype": "U8", "shape": [2**40], "data_offsets": [
                max(t["data_offsets"][1] for t in h.values()),
                max(t["data_offsets"][1] for t in h.values()) + 2**40]}})), 3,
             ("E-ST-TRUNCATED", "z: data ends")),
        Case("M16-end-near-2-64", field("data_offsets", [2**64 - 65, 2**64 - 1]), 3,
             ("E-ST-OFFSETS",)),
        Case("M17-bytes-differ", field("shape", [15]), 3, ("E-ST-OFFSETS", norm, "60 bytes")),
        Case("M18-overlap", overlapping, 3, ("E-ST-OFFSETS", "expected 64")),
        Case("M19-hole", field("data_offsets", [10**6, 10**6 + 64]), 3, ("E-ST-OFFSETS",)),
        Case("M19-trailing-bytes", weights(good + b"tail"), 3,
             ("E-ST-OFFSETS", "--allow-trailing-bytes")),
        Case("M19-trailing-bytes-allowed", weights(good + b"tail"), 0, ("4 bytes after",),
             extra=("--allow-trailing-bytes",)),
        Case("M20-truncated", weights(good[:-100]), 3,
             ("E-ST-TRUNCATED", "lm_head.weight", "100 bytes", "download this file again")),
        Case("M21-empty-and-scalar-unneeded", changed(lambda held: held.update(
            {"e": ("F32", [0, 5], b""), "s": ("F32", [], b"\0" * 4)})), 0),
        Case("M21-empty-needed", edit(norm, ("F32", [0], b"")), 3, ("E-ST-SHAPE", norm, "[0]")),
        Case("M22-metadata-number", header(lambda h: h.update({"__metadata__": {"a": 1}})), 3,
             ("E-ST-HEADER", "__metadata__", "a string")),
        Case("M22-metadata-strings", header(lambda h: h.update({"__metadata__": {"a": "1"}})), 0),
        Case("M23-850000-tensors", many_tensors, 0, ("850",), seconds=60),
        Case("M23-long-name", edit("n" * 257, ("F32", [1], b"\0" * 4)), 3,
             ("E-ST-LIMIT", "257 bytes")),
        Case("M24-nested", header(lambda h: '{"a":' + "[" * 5_000_000), 3, ("E-ST-HEADER",)),
        Case("M24-nested-in-tensor", header(lambda h: '{"a":{"b":' + "[" * 5_000_000), 3,
             ("E-ST-JSON", "deeper")),
        Case("M25-missing", changed(no_weights(norm)), 3, ("E-ST-MISSING", norm, "1 file")),
        Case("M25-many-missing", changed(several_gone), 3,
             ("E-ST-MISSING", "9 missing", "and 4 more")),
        Case("M26-harmless", edit("model.layers.0.self_attn.rotary_emb.inv_freq",
                                  ("F32", [4], b"\0" * 16)), 0, absent=("inv_freq",)),
        Case("M26-extra", edit("base_model.lora_A.weight", ("F32", [1], b"\0" * 4)), 0,
             ("1 tensor", "lora_A")),
        Case("M26-gptq", edit("model.layers.0.mlp.up_proj.qweight", ("I32", [1], b"\0" * 4)), 3,
             ("E-ST-QUANT", "GPTQ")),
        Case("M27-wrong-shape", config(intermediate_size=32), 3,
             ("E-ST-SHAPE", "gate_proj", "[24, 16]", "[32, 16]", "intermediate_size")),
        Case("M27-transposed", changed(lambda held: held.__setitem__(
            "model.layers.0.mlp.down_proj.weight",
            ("F32", [24, 16], held["model.layers.0.mlp.down_proj.weight"][2]))), 3,
             ("E-ST-SHAPE", "down_proj")),
        Case("M28-mixed-dtypes", split(mixed=True), 0),
        Case("M28-inspect", split(mixed=True), 0, stdout=("F16: ", "F32: ", "2 with 21 tensors"),
             args=INSPECT),
        Case("M25-inspect", changed(no_weights(norm)), 3, ("E-ST-MISSING", norm), args=INSPECT),
        Case("M29-nan", changed(poison), 3,
             ("E-ST-NONFINITE", "up_proj", "1 values", "element 10"), leaves_output=True),
        # The weights load; every line then has an error record about its NaN logits.
        Case("M29-nan-warn", changed(poison), 1, ("up_proj",), extra=("--check-weights=warn",)),
        Case("M31-parent", split(weight_map={norm: "../x.safetensors"}), 3, ("E-ST-INDEX", norm)),
        Case("M31-absolute", split(weight_map={norm: "/etc/passwd.safetensors"}), 3,
             ("E-ST-INDEX",)),
        Case("M31-backslash", split(weight_map={norm: "a\\x.safetensors"}), 3, ("E-ST-INDEX",)),
        Case("M31-nul", split(weight_map={norm: "x.safetensors\0"}), 3, ("E-ST-INDEX",)),
        Case("M31-empty", split(weight_map={norm: ""}), 3, ("E-ST-INDEX",)),
        Case("M31-other-suffix", split(weight_map={norm: "pytorch_model.bin"}), 3,
             ("E-ST-INDEX",)),
        Case("M32-missing-shard", split(drop="b.safetensors"), 3,
             ("E-ST-INDEX", "b.safetensors", "not in the directory")),
        Case("M32-wrong-shard", split(weight_map={norm: "a.safetensors"}), 3,
             ("E-ST-INDEX", norm, "a.safetensors")),
        Case("M32-in-two-shards", split(both=True), 3,
             ("E-ST-INDEX", "a.safetensors", "b.safetensors")),
        Case("M32-index-not-json", lambda folder: ModelFolder(folder / "model").write(INDEX, "{"),
             3, ("E-ST-INDEX",)),
        Case("M33-index-first", lambda folder: (
            split()(folder), ModelFolder(folder / "model").write(ST, b"ignored"),
            ModelFolder(folder / "model").write("consolidated.safetensors", b"ignored")), 0,
             ("model.safetensors is ignored", "consolidated.safetensors is ignored")),
        Case("M35-fifo", replace_by_fifo, 3, ("E-ST-FILE", "pipe")),
        Case("M35-folder", replace_by_folder, 3, ("E-ST-FILE", "directory")),
        Case("M35-device", replace_by_device, 3, ("E-ST-FILE", "device")),
        Case("M35-links-are-followed", through_links, 0),
    ]


def config_cases():
    return [
        Case("C0-no-directory", lambda folder: (folder / "model").rename(folder / "elsewhere"), 3,
             ("E-CFG-DIR",)),
        Case("C1-missing", lambda folder: (folder / "model" / "config.json").unlink(), 3,
             ("E-CFG-FILE", "config.json")),
        *[Case(f"C1-{what}-{args[0]}", link_to_itself, 3, (says, "E-CFG-DIR"), args=(*args, "--model", path))
          for what, path, says in (("loop", "loop", "Too many levels"), ("name", "n" * 300, "name too long"))
          for args in (("inspect",), ("run", "--prompts", "PROMPTS", "--output", "OUT"), ("profile", "--output", "OUT"),
                       ("plan", "--profile", "t4"))],
        Case("C1-empty", config_text(""), 3, ("E-CFG-JSON", "config.json")),
        Case("C1-not-json", config_text('{"a":}'), 3, ("E-CFG-JSON", "byte 6")),
        Case("C1-array", config_text("[]"), 3, ("E-CFG-TYPE", "array of 0")),
        Case("C1-bom", config_text(b"\xef\xbb\xbf" + json.dumps(llama_config()).encode()), 0),
        Case("C1-nested", config_text("[" * 5_000_000), 3, ("E-CFG-JSON", "deeper")),
        Case("C1-duplicate", config_text('{"hidden_size":1,"hidden_size":2}'), 3,
             ("E-CFG-JSON", "duplicate")),
        Case("C2-unknown-type", config(model_type="gemma4"), 3,
             ("E-CFG-MODEL", "stablelm or starcoder2", "nearest")),
        Case("C2-qwen2-moe", config(model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"]),
             3, ("E-CFG-MODEL", "nearest supported type is qwen3_moe")),
        Case("C2-unknown-class", config(architectures=["LlamaForTokenClassification"]), 3,
             ("E-CFG-MODEL",)),
        Case("C2-control-bytes", config(model_type="a\x1b[2J\n\u009b" + "x" * 5000), 3,
             ("E-CFG-MODEL",)),
        Case("C3-disagree", config(model_type="opt"), 3, ("E-CFG-MODEL", "LlamaForCausalLM")),
        *[Case(f"C4-missing-{name}", config(**{name: None}), 3, ("E-CFG-MISSING", name, "llama"))
          for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                       "intermediate_size", "max_position_embeddings")],
        Case("C5-string", config(hidden_size="16"), 3, ("E-CFG-TYPE", "hidden_size")),
        Case("C5-float", config(hidden_size=16.5), 3, ("E-CFG-TYPE", "hidden_size")),
        Case("C5-null", config_text(json.dumps({**llama_config(), "hidden_size": None})), 3,
             ("E-CFG-TYPE", "hidden_size: null")),
        Case("C5-negative", config(hidden_size=-16), 3, ("E-CFG-TYPE", "hidden_size: -16")),
        Case("C6-indivisible", config(hidden_size=15), 3, ("E-CFG-HEADS", "15", "2")),
        Case("C7-no-divisor", config(num_attention_heads=4, num_key_value_heads=3), 3,
             ("E-CFG-HEADS", "3", "4")),
        Case("C7-more", config(num_key_value_heads=4), 3, ("E-CFG-HEADS",)),
        Case("C7-zero", config(num_key_value_heads=0), 3, ("E-CFG-HEADS",)),
        Case("C8-layers", config(num_hidden_layers=10**9), 3, ("E-CFG-LIMIT", "1024")),
        Case("C8-vocab", config(vocab_size=2**31), 3, ("E-CFG-LIMIT", "vocab_size")),
        Case("C8-positions", config(max_position_embeddings=10**12), 3, ("E-CFG-LIMIT",)),
        Case("C8-beyond-64-bits", config(vocab_size=2**64), 3, ("E-CFG-LIMIT", "18446744073709551616")),
        Case("C9-longrope", config(rope_scaling={"rope_type": "longrope"}), 3,
             ("E-CFG-ROPE", "rope_scaling.short_factor", "missing")),
        Case("C9-su", config(rope_scaling={"type": "su"}), 3, ("E-CFG-ROPE", "rope_scaling.short_factor")),
        Case("C9-mrope", config(rope_scaling={"type": "mrope", "mrope_section": [1, 1]}), 3,
             ("E-CFG-ROPE", "mrope")),
        Case("C9-linear", config(rope_scaling={"type": "linear", "factor": 2.0}), 0),
        Case("C9-dynamic", config(rope_scaling={"type": "dynamic", "factor": 2.0}), 0),
        Case("C9-yarn", config(rope_scaling={"rope_type": "yarn", "factor": 2.0}), 0),
        Case("C9-llama3", config(rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}), 0),
        Case("C9-newer-layout", config(rope_theta=None, rope_parameters={
            "rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}), 0),
        Case("C10-factor-zero", config(rope_scaling={"type": "linear", "factor": 0}), 3,
             ("E-CFG-ROPE", "rope_scaling.factor")),
        Case("C10-sub-field", config(rope_scaling={"rope_type": "llama3", "factor": 8.0}), 3,
             ("E-CFG-ROPE", "rope_scaling.low_freq_factor: missing")),
        Case("C11-soft-capping", config(final_logit_softcapping=30.0), 3,
             ("E-CFG-FEATURE", "final_logit_softcapping")),
        Case("C11-experts-per-token",
             config(model_type="mixtral", architectures=["MixtralForCausalLM"],
                    num_local_experts=2, num_experts_per_tok=3), 3,
             ("E-CFG-EXPERTS", "num_experts_per_tok", "3", "2")),
        Case("C11-experts", config(num_local_experts=8), 3, ("E-CFG-FEATURE", "num_local_experts")),
        Case("C11-quantized", config(quantization_config={"quant_method": "awq"}), 3,
             ("E-CFG-QUANT", "quantization_config")),
        Case("C11-alibi", config(alibi=True), 3, ("E-CFG-FEATURE", "alibi")),
        Case("C11-partial-rotary", config(partial_rotary_factor=0.5), 3,
             ("E-CFG-FEATURE", "partial_rotary_factor")),
        Case("C12-activation", config(hidden_act="relu2"), 3, ("E-CFG-ACT", "relu2", "silu")),
        Case("C13-opt-post-norm", model("opt", do_layer_norm_before=False, word_embed_proj_dim=8),
             0),
        Case("C14-tied-with-head", tied_with_head, 0, ("lm_head.weight differs",)),
        Case("C15-dtype", other_dtype, 0, ("files win",)),
        Case("C16-auto-map", config(auto_map={"AutoModel": "modeling_evil.Evil"}), 0,
             ("auto_map is ignored",)),
        Case("C16-inspect", config(auto_map={"AutoModel": "modeling_evil.Evil"}), 0,
             stdout=("auto_map is ignored",), args=INSPECT),
        Case("C17-list", config(eos_token_id=[2, 3]), 0),
        Case("C17-null", config_text(json.dumps({**llama_config(), "eos_token_id": None})), 0,
             ("eos_token_id",)),
        Case("C17-beyond-vocab", config(eos_token_id=32), 3, ("E-CFG-EOS", "32")),
        Case("C18-not-adopted", generation('{"temperature": 0.7, "do_sample": true}'), 0),
        Case("C18-generation-not-json", generation("{"), 3,
             ("E-CFG-JSON", "generation_config.json")),
        Case("C19-nan", config_text(json.dumps(llama_config(rms_norm_eps=float("nan")))), 3,
             ("E-CFG-JSON", "no NaN")),
        Case("C19-infinity", config_text(json.dumps(llama_config(rope_theta=float("inf")))), 3,
             ("E-CFG-JSON",)),
        Case("C20-zero", config(rms_norm_eps=0), 3, ("E-CFG-NORM", "rms_norm_eps")),
        Case("C20-negative", config(rms_norm_eps=-1e-5), 3, ("E-CFG-NORM",)),
    ]


def cases():
    return weight_cases() + config_cases()
