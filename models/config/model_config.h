#pragma once

// What a decoder-only model computes, as validated values. One struct for all families: a family
// is a combination of its fields, and nothing after the parser asks for the family's name.
// Pure: no files, no tensors. Sizes are in elements.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/activation.h"
#include "base/dtype.h"
#include "base/json.h"

namespace triphase {

enum class Norm : std::uint8_t {
  kLayerNorm,       // (x - mean) / sqrt(var + eps) * w + b
  kRmsNorm,         // x / sqrt(mean(x^2) + eps) * w
  kRmsNormPlusOne,  // the same with (1 + w): Gemma
};

// Norms of queries and keys, before their positions are applied; of the kind and epsilon of the
// others, without bias.
enum class QkNorm : std::uint8_t {
  kNone,
  kHead,   // each head by itself, with one weight for all: Qwen3
  kWidth,  // all heads together: OLMo 2
};

// How a checkpoint names and shapes its tensors; see tensor_manifest.h.
enum class TensorNaming : std::uint8_t {
  kLlama,
  kOpt,
  kGptNeox,
  kPhi3,  // fused projections
  kGlm,
  kStarcoder2,
  kFalcon,
  kGpt2,    // matrices are [in, out] there
  kGemma2,  // norms before and after each branch
  kMixtral,
  kGptOss,  // experts stacked in one tensor, [in, out] there or in MXFP4
};

enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLong };

// Rotary embedding in the "rotate half" layout: channel c pairs with c + rotary_dim / 2.
struct RopeConfig {
  double theta = 10000.0;
  std::int64_t rotary_dim = 0;  // rotated channels of each head, even; the rest pass through
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  std::int64_t original_max_positions = 0;  // yarn, llama3, dynamic, long
  double low_freq_factor = 1.0;             // llama3
  double high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  std::optional<double> attention_factor;   // yarn, long: given in the config; else computed
  std::optional<double> mscale;             // yarn
  std::optional<double> mscale_all_dim;     // yarn
  bool yarn_truncate = true;                // yarn: round the correction range to whole channels
  // long: what divides each pair's frequency, of prompts up to the original context and beyond it.
  std::vector<double> short_factors, long_factors;
  bool neighbours = false;  // in the checkpoint channel 2c pairs with 2c + 1: GLM-4

  // Frequencies depend on the length of the prompt.
  [[nodiscard]] bool follows_length() const {
    return scaling == RopeScaling::kDynamic || scaling == RopeScaling::kLong;
  }
};

struct NormConfig {
  Norm kind = Norm::kRmsNorm;
  double eps = 0.0;
  bool before = true;   // of what each branch reads
  bool shared = false;  // parallel branches read one norm: Falcon-7B, StableLM 2
  bool output = false;  // of what each branch gives, before it joins the sum: OLMo 2, GLM-4
  bool final_norm = true;
  bool bias = false;    // LayerNorm with bias
  bool weights = true;  // false: norms without parameters; ones are filled in
  QkNorm qk = QkNorm::kNone;

  // Neither: the norm follows each residual sum (OPT-350m).
  [[nodiscard]] bool after_sum() const { return !before && !output; }
  // What a norm of this kind adds to its weights.
  [[nodiscard]] float weight_offset() const { return kind == Norm::kRmsNormPlusOne ? 1.0F : 0.0F; }
};

struct AttentionConfig {
  bool qkv_bias = false;
  bool out_bias = false;
  std::optional<double> score_scale;  // of queries times keys; nothing: 1 / sqrt(head_dim)
  double score_cap = 0.0;             // above 0: a score x becomes cap * tanh(x / cap) (Gemma 2)
  bool sinks = false;                 // a learned logit per head joins its softmax (gpt-oss)
};

struct MlpConfig {
  Activation activation = Activation::kSilu;
  bool gated = true;  // down(act(gate(x)) * up(x)) instead of down(act(up(x)))
  bool bias = false;
};

// Feed-forward networks side by side, of MlpConfig's form but for the biases: a router picks some
// for each token, and their outputs are added up, each times its share of the router's softmax.
struct ExpertConfig {
  std::int64_t count = 0;  // in a layer; 0: the model has none
  std::int64_t per_token = 0;
  std::int64_t ffn_size = 0;       // of each
  bool shares_sum_to_one = true;   // the softmax is over the picked ones alone
  bool bias = false;               // of the router and of each network
  std::vector<bool> plain_layers;  // per layer: one feed-forward network instead. Empty = none
};

// The model's output.
struct LogitConfig {
  double cap = 0.0;      // as AttentionConfig::score_cap
  double divisor = 1.0;  // Granite
};

struct EmbeddingConfig {
  bool tied = false;                 // the head is the embedding table
  bool scaled = false;               // Gemma
  float scale = 1.0F;                // Gemma: sqrt(hidden_size); see set_embedding_scale()
  std::int64_t position_offset = 0;  // learned: row = position + offset (OPT: 2)
};

struct ModelConfig {
  std::string model_type;    // "llama", "opt", ...: for messages and reports only
  std::string architecture;  // as in the file, for messages
  TensorNaming naming = TensorNaming::kLlama;

  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;  // of layers without experts
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;  // longest context: max_position_embeddings, times RoPE scaling
  std::int64_t embed_dim = 0;      // word embedding width; != hidden_size only in OPT-350m

  NormConfig norms;
  AttentionConfig attention;
  MlpConfig mlp;
  ExpertConfig experts;
  EmbeddingConfig embedding;
  LogitConfig logits;
  bool parallel_residual = false;         // x + attn(norm1(x)) + mlp(norm2(x)): GPT-NeoX, Falcon
  std::optional<RopeConfig> rope;         // nothing: learned absolute positions
  std::optional<RopeConfig> window_rope;  // of layers with a window; nothing: as `rope`
  // Per layer: its queries and keys are not rotated although `rope` is there. Empty = none.
  std::vector<bool> unrotated;
  // Per layer: tokens a query may look back to, itself included; 0 = unlimited. Empty = all 0.
  std::vector<std::int64_t> sliding_window;

  std::vector<std::int32_t> eos_ids;  // empty: stop by length only
  std::optional<std::int32_t> bos_id;
  std::optional<DType> declared_dtype;  // torch_dtype; the files win

  [[nodiscard]] std::int64_t window(std::int64_t layer) const {
    return sliding_window.empty() ? 0 : sliding_window[layer];
  }
  // The shortest window of a model whose every layer has one; 0: some layer has none.
  [[nodiscard]] std::int64_t window_of_every_layer() const {
    return sliding_window.empty() ? 0 : *std::ranges::min_element(sliding_window);
  }
  [[nodiscard]] bool rotates(std::int64_t layer) const {
    return rope && (unrotated.empty() || !unrotated[layer]);
  }
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return experts.count > 0 && (experts.plain_layers.empty() || !experts.plain_layers[layer]);
  }
  // The width of the feed-forward network of layers without experts; 0: there are none.
  [[nodiscard]] std::int64_t plain_ffn() const;
  [[nodiscard]] std::int64_t q_width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return kv_heads * head_dim; }
  // Bytes of K and V of one token over all layers.
  [[nodiscard]] std::uint64_t kv_bytes_per_token(DType kv_dtype) const {
    return 2 * static_cast<std::uint64_t>(layers * kv_width()) * dtype_bytes(kv_dtype);
  }
};

// What reading a config found besides the config itself: lines for `inspect` and the log.
using Notes = std::vector<std::string>;

// Validates a parsed config.json (and generation_config.json for eos ids, when given). Throws
// ErrorRole::kModel with E-CFG-* codes naming the field; never guesses. `file` is for messages.
[[nodiscard]] ModelConfig parse_model_config(const Json& config, const Json* generation_config,
                                             std::string_view file, Notes& notes);

// Rounds a scaled embedding's factor through the type of the embedding table, as transformers does
// (sqrt(3072) is 55.5 in BF16). Does nothing for models without the factor.
void set_embedding_scale(ModelConfig& config, DType embedding_dtype);

// A built-in shape by name ("opt-6.7b", "llama-2-7b", ...), or nothing. See builtin_shape_names().
[[nodiscard]] std::optional<ModelConfig> builtin_shape(std::string_view name);
[[nodiscard]] std::vector<std::string> builtin_shape_names();

}  // namespace triphase
