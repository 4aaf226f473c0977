#pragma once

// Prompts whose tokens choose what they attend (Squeezed Attention's prefill): cuts a step's prompt
// rows into what is attended densely and stretches that share one choice, for one layer at a time.
// Kept between layers to reuse its memory; not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "scheduler/attention/prompt_units.h"

namespace triphase {

class PromptChoices {
 public:
  explicit PromptChoices(const PromptUnits& units) : units_(units) {}

  [[nodiscard]] const PromptUnits& units() const { return units_; }

  void begin_layer();
  // Rows of a prompt, in ascending order; the rest of a unit that they begin follows them in q,
  // which has `q_rows` rows. Rows in front of the units are added to `dense`.
  void add(const AttentionSegment& rows, std::int64_t prompt_tokens, std::int64_t q_rows,
           std::vector<AttentionSegment>& dense);

  // Whole units, whose queries choose together.
  [[nodiscard]] std::span<const AttentionSegment> choosing() const { return choosing_; }
  // The rows of the units, in one block where the cache is INT8: chosen_row is their unit's.
  [[nodiscard]] std::span<const AttentionSegment> parts() const { return parts_; }
  // Tokens up to each row's position, summed over the rows of all parts.
  [[nodiscard]] double context_tokens() const;

 private:
  PromptUnits units_;
  std::int64_t unit_begin_ = -1;  // first position of the last unit
  std::vector<AttentionSegment> choosing_;
  std::vector<AttentionSegment> parts_;
};

}  // namespace triphase
