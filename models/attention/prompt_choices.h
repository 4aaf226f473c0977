#pragma once

// Prompts whose tokens choose what they attend (Squeezed Attention's prefill): cuts a step's prompt
// rows into what is attended densely and stretches that share one choice, for one layer at a time.
// Only where SparseOps::selects_for_several_queries(), whose choices lie in host memory. Kept
// between layers to reuse its memory; not thread safe.

#include <cstdint>
#include <deque>
#include <vector>

#include "models/attention/attention_method.h"
#include "scheduler/attention/prompt_units.h"

namespace triphase {

class PromptChoices {
 public:
  // Rows of a prompt under one choice, in one block where the cache is INT8.
  struct Part {
    AttentionSegment segment;  // attends `lists`
    Selection lists;           // one row: tokens up to the segment's last position
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> counts;
  };

  explicit PromptChoices(const PromptUnits& units) : units_(units) {}

  [[nodiscard]] const PromptUnits& units() const { return units_; }

  void begin_layer();
  // call.keys: rows of a prompt, in ascending order; the rest of a unit that they begin follows
  // them in q. Rows in front of the units are added to `dense`.
  void add(AttentionMethod& method, const LayerCall& call, std::int64_t prompt_tokens,
           ConstMatrix q, std::vector<AttentionSegment>& dense);
  // Parts stay where they are until the next layer.
  [[nodiscard]] std::size_t count() const { return used_; }
  [[nodiscard]] const Part& part(std::size_t index) const { return parts_[index]; }

  // Tokens that the part's rows attend and tokens up to their positions, summed over rows; lists of
  // a row count by their mean.
  [[nodiscard]] static double attended_tokens(const Part& part);
  [[nodiscard]] static double context_tokens(const Part& part);

 private:
  void add_part(const AttentionSegment& segment);

  PromptUnits units_;
  // The current unit's choice, and its first position.
  Selection chosen_;
  std::vector<std::int32_t> chosen_tokens_;
  std::vector<std::int32_t> chosen_counts_;
  std::int64_t unit_begin_ = -1;
  std::deque<Part> parts_;
  std::size_t used_ = 0;
};

}  // namespace triphase
