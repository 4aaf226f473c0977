#pragma once

// OUT.manifest.json: what job the records in OUT.part and OUT belong to. Two runs may share an
// output only when their manifests agree. Schema: docs/schemas/manifest.schema.json. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

// The model's part of the manifest, filled before any weight is read.
struct ModelIdentity {
  std::string path;               // as given
  std::string fingerprint;        // hash of config.json, every safetensors header, and file sizes
  std::string tokenizer;          // hash of the tokenizer files; empty: none
  std::string fixed_context;      // hash of what stands in front of every prompt; empty: nothing
  std::string generation_config;  // hash of generation_config.json; empty: none
  std::string weights;            // hash of samples of the weights; empty: random weights
  std::string chat_template;      // hash of the template files' texts; empty: none
};

struct Manifest {
  // Fields that must agree between a run and its resumption.
  std::string program_version;
  std::string commit;
  std::string kernels;     // that computed: "AVX2", ...; merged shards may name several
  std::string input_path;  // reported, not compared: a file may be moved
  std::uint64_t input_bytes = 0;
  std::uint64_t input_lines = 0;
  std::uint64_t records = 0;  // of a complete output of this shard; follows from the other fields
  std::string input_hash;     // empty: a pipe, which cannot be resumed
  ModelIdentity model;        // `path` reported, not compared
  std::string generation;     // JSON object text: every option that can change a record
  std::uint64_t seed = 0;
  std::string kv_dtype;                    // resolved: "fp16", "int8 in blocks of 64 tokens", ...
  std::uint64_t cached_hidden_states = 0;  // leading tokens with K and V from INT8 hidden states
  std::string plan_hash;                   // empty: no plan
  std::uint64_t shard_index = 0;
  std::uint64_t shard_count = 1;
  std::string order;         // "input" or "completed"
  std::string input_format;  // "auto", "jsonl", "openai", "ids"

  // When the first run started, in seconds since 1970: records and chat templates name it.
  std::int64_t started = 0;

  // Who writes now; for the lock message.
  std::int64_t writer_pid = 0;
  std::string writer_host;
};

// What the values of the KV cache depend on.
struct KvValues {
  DType dtype = DType::kF32;
  std::int64_t block_tokens = 0;  // INT8: each block has scales of its own; others: 0
};
// As the manifest has them.
[[nodiscard]] std::string describe(const KvValues& values);
// Nothing: not such a text.
[[nodiscard]] std::optional<KvValues> parse_kv_values(std::string_view text);

inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{16} << 20;

// `generation` is filled from the options (after --generation-config was adopted).
[[nodiscard]] Manifest make_manifest(const RunOptions& options, const PromptFileFacts& input,
                                     const ModelIdentity& model, std::string_view kv_dtype,
                                     std::int64_t cached_hidden_states);

[[nodiscard]] std::string manifest_to_json(const Manifest& manifest);

// Throws ErrorRole::kInput E-IN-MANIFEST naming the field.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string_view file);
// Of this file. Also throws as read_small_file.
[[nodiscard]] Manifest read_manifest(FileOps& ops, const std::string& file);

// 16 hex digits that name the job in its records: the same in every run and shard of it.
[[nodiscard]] std::string job_key(const Manifest& manifest);

// "seed: 1 there, 2 now" for every compared field that differs; empty: the same job.
[[nodiscard]] std::vector<std::string> manifest_differences(const Manifest& there,
                                                            const Manifest& now);

}  // namespace triphase
