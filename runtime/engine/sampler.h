#pragma once

// Logits to the next token, or to the score of a given one. A draw depends only on the logits, the
// line's parameters, its tokens so far and (line key, position): never on the batch, the order or a
// restart. Safe to call from many threads with different scratch.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/job/request.h"

namespace triphase {

// The key of a line's draws: its own seed, else a mix of the job's seed and the line's index.
[[nodiscard]] std::uint64_t line_key(const SamplingParams& params, std::uint64_t job_seed,
                                     std::uint64_t index);

// Uniform in [0, 1) from (key, position): Philox-4x32-10 (Salmon et al., SC 2011), counter =
// position.
[[nodiscard]] double uniform_draw(std::uint64_t key, std::uint64_t position);

struct SamplerScratch {
  std::vector<float> logits;
  std::vector<std::pair<double, TokenId>> candidates;
};

struct Sampled {
  bool finite = true;  // false: NaN or Inf among the logits, no token was chosen
  TokenId token = 0;
  std::optional<TokenLogprob> logprob;  // when params.logprobs >= 0
};

// `logits`: one row, [vocab]. `history`: prompt and completion so far (repetition penalty).
// `position`: number of completion tokens before this one. In order: repetition penalty,
// temperature, top-k, top-p, min-p; each keeps at least one token; ties go to the lower id.
[[nodiscard]] Sampled sample(std::span<const float> logits, const SamplingParams& params,
                             std::span<const TokenId> history, std::uint64_t key,
                             std::uint64_t position, SamplerScratch& scratch);

// The score of `token` under one row of logits: its log-softmax in float64, and the likeliest
// token. Returns false when a logit is NaN or infinite.
[[nodiscard]] bool score_token(std::span<const float> logits, TokenId token, TokenScore& score);

}  // namespace triphase
