#pragma once

// What --kv-sparsity auto found: every sparsity that was tried, with its divergence from dense
// attention on the job's own prompts, and the one that was taken. OUT.sparsity.json, read again
// when the job is resumed; also a part of the summary. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"

namespace triphase {

// How far a method's next-token distributions are from dense attention's over the same tokens.
// Standard errors are over prompts, whose tokens are not independent.
struct Divergence {
  double kl = 0.0;  // mean over tokens of KL(reference || other), in nats
  double kl_stderr = 0.0;
  double agreement = 1.0;  // share of tokens whose likeliest token is the same
  double agreement_stderr = 0.0;
  std::int64_t tokens = 0;
};

struct TriedSparsity {
  double sparsity = 0.0;
  Divergence divergence;
};

struct SparsityChoice {
  std::string attention;  // the method, as --attention names it
  double max_divergence = 0.0;
  std::int64_t prompts = 0;          // requests of the job that were continued
  std::string kv_dtype;              // of the KV cache it was measured with
  std::vector<TriedSparsity> tried;  // highest sparsity first; the last one held, if any did
  std::optional<double> chosen;      // nothing: none held, the job decodes densely
};

[[nodiscard]] std::string sparsity_choice_to_json(const SparsityChoice& choice);
// Writes it as the next value of a larger file.
void write_sparsity_choice(JsonWriter& json, const SparsityChoice& choice);

// Throws ErrorRole::kInput E-IN-SPARSITY naming the field.
[[nodiscard]] SparsityChoice parse_sparsity_choice(std::string_view text, std::string_view file);

// For the log: "swa at KV sparsity 0.6: KL divergence 0.031 +- 0.004 nats, 93.1 % of ...".
[[nodiscard]] std::string describe(const SparsityChoice& choice);

}  // namespace triphase
