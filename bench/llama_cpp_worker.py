"""llama.cpp's side of bench/vs_llama_cpp.py, through the C API in llama-cpp-python.

Runs in a process of its own, so that its threads and memory are gone when ours is measured:

    python3 llama_cpp_worker.py JOB.json

JOB.json: {"config": HF config, "weights": "fp16" or "bf16", "gguf": path, "threads", "context",
"batches": [1, 16], "steps", "repeats", "prefill_repeats"}. Prints one JSON line per flash-attention setting and batch.

What is measured
  - Weights F16 or BF16 (random), KV cache F16, one KV stream per sequence (kv_unified off), so that no
    sequence attends over another's cells.
  - Prefill: one whole prompt through llama_decode, logits for the last token only, as often as
    `prefill_repeats` says.
  - Decode: every sequence holds the prompt; then one call of llama_decode per step, with one token
    per sequence and its logits: one step as warm-up, then `repeats` times `steps`, where the last
    step is at `context` tokens. Sequences after the first start from copies of its cache
    (llama_memory_seq_cp, which between streams copies the cells: nothing is shared).
"""

import ctypes
import json
import os
import sys
import time

import llama_cpp
import numpy as np

UBATCH = 512  # llama.cpp's default: rows of one prefill product


def write_gguf(path, config, weights):
    """A GGUF file of the config's shape with random matrices; no tokenizer."""
    import gguf

    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    ffn, vocab = config["intermediate_size"], config["vocab_size"]
    temporary = f"{path}.part"
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(vocab)
    bf16 = weights == "bf16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if bf16 else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("none")
    # One block of normal numbers serves every matrix: speed does not depend on the values, as long
    # as they are ordinary ones.
    block = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)

    def matrix(name, rows, cols):
        values = (block / np.sqrt(cols)).astype(np.float32)
        if bf16:  # as bytes, two of each number
            kind = gguf.GGMLQuantizationType.BF16
            values = np.resize(gguf.quants.quantize(values, kind), 2 * rows * cols)
            writer.add_tensor(name, values.reshape(rows, 2 * cols), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.resize(values.astype(np.float16), rows * cols).reshape(rows, cols))

    def norm(name):
        writer.add_tensor(name, np.ones(hidden, np.float32))

    matrix("token_embd.weight", vocab, hidden)
    norm("output_norm.weight")
    if not config["tie_word_embeddings"]:
        matrix("output.weight", vocab, hidden)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        matrix(prefix + "attn_q.weight", heads * head_dim, hidden)
        matrix(prefix + "attn_k.weight", kv_heads * head_dim, hidden)
        matrix(prefix + "attn_v.weight", kv_heads * head_dim, hidden)
        matrix(prefix + "attn_output.weight", hidden, heads * head_dim)
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "ffn_gate.weight", ffn, hidden)
        matrix(prefix + "ffn_up.weight", ffn, hidden)
        matrix(prefix + "ffn_down.weight", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, path)


class Context:
    """One llama.cpp context: `batch` sequences of up to `tokens` tokens."""

    def __init__(self, model, batch, tokens, threads, flash_attention):
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = batch
        # A multiple of the cache's padding for every sequence.
        params.n_ctx = batch * ((tokens + 255) // 256) * 256
        params.n_batch = max(UBATCH, 2048)
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F16
        params.flash_attn_type = int(flash_attention)
        params.kv_unified = False
        self.handle = llama_cpp.llama_init_from_model(model, params)
        if not self.handle:
            raise SystemExit("llama.cpp refused the context")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self.rows = params.n_batch

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.handle)

    def decode(self, rows):
        """One llama_decode call; rows: (token, position, sequence, wants logits). Seconds."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = logits
        start = time.perf_counter()
        result = llama_cpp.llama_decode(self.handle, self.batch)
        llama_cpp.llama_synchronize(self.handle)
        seconds = time.perf_counter() - start
        if result != 0:
            raise SystemExit(f"llama_decode returned {result}")
        return seconds

    def prefill(self, sequence, tokens):
        seconds = 0.0
        for first in range(0, len(tokens), self.rows):
            part = tokens[first : first + self.rows]
            last = len(tokens) - 1 - first
            seconds += self.decode(
                [(token, first + i, sequence, i == last) for i, token in enumerate(part)]
            )
        return seconds

    def forget(self, sequence, first):
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, first, -1)

    def copy(self, source, target):
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, -1, -1)


def measure(model, job, flash_attention, prompt):
    """Yields one record per batch size, all from one prefill in a context for the largest."""
    largest = max(job["batches"])
    context = Context(model, largest, job["context"], job["threads"], flash_attention)
    context.prefill(0, prompt[:64])  # warm-up: pages, threads, graphs
    prefill = []
    for _ in range(job["prefill_repeats"]):
        context.forget(0, 0)
        prefill.append(len(prompt) / context.prefill(0, prompt))
    for batch in sorted(job["batches"]):
        for sequence in range(batch):
            context.forget(sequence, 0 if sequence else len(prompt))
            if sequence:
                context.copy(0, sequence)
        position = len(prompt)

        def step():
            nonlocal position
            rows = [((7 * s + position) % 251, position, s, True) for s in range(batch)]
            position += 1
            return context.decode(rows)

        step()  # warm-up
        samples = []
        for _ in range(job["repeats"]):
            samples.append(job["steps"] * batch / sum(step() for _ in range(job["steps"])))
        yield {
            "flash_attention": flash_attention,
            "batch": batch,
            "prefill_samples": prefill,
            "decode_samples": samples,
        }
    context.close()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    if not os.path.exists(job["gguf"]):
        write_gguf(job["gguf"], job["config"], job["weights"])
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mode = getattr(llama_cpp, "LLAMA_LOAD_MODE_" + job.get("load_mode", "auto").upper())
    model = llama_cpp.llama_model_load_from_file(job["gguf"].encode(), params)
    if not model:
        raise SystemExit(f"llama.cpp did not load {job['gguf']}")
    generator = np.random.default_rng(2)
    vocab = job["config"]["vocab_size"]
    filled = job["context"] - job["repeats"] * job["steps"] - 1
    prompt = generator.integers(0, vocab, filled).tolist()
    for flash_attention in (False, True):
        for record in measure(model, job, flash_attention, prompt):
            print(json.dumps(record), flush=True)
    llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main()
