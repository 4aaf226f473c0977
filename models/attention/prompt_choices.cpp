#include "models/attention/prompt_choices.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

void PromptChoices::begin_layer() {
  choosing_.clear();
  parts_.clear();
  unit_begin_ = -1;
}

void PromptChoices::add(const AttentionSegment& rows, std::int64_t prompt_tokens,
                        std::int64_t q_rows, std::vector<AttentionSegment>& dense) {
  const std::int64_t first = rows.context_tokens - rows.query_count;
  const std::int64_t before = std::clamp<std::int64_t>(units_.first - first, 0, rows.query_count);
  if (before > 0) {
    dense.push_back(rows);
    dense.back().query_count = before;
    dense.back().context_tokens = first + before;
  }
  for (std::int64_t position = first + before; position < rows.context_tokens;) {
    const std::int64_t begin = units_.first + (position - units_.first) / units_.rows * units_.rows;
    const std::int64_t end = std::min(begin + units_.rows, prompt_tokens);
    AttentionSegment part = rows;
    part.query_begin = rows.query_begin + position - first;
    part.window = 0;
    if (position == begin) {
      TRIPHASE_CHECK(part.query_begin + end - begin <= q_rows, "a prompt's unit cut by a step");
      choosing_.push_back(part);
      choosing_.back().query_count = end - begin;
      choosing_.back().context_tokens = end;
      unit_begin_ = begin;
    }
    TRIPHASE_CHECK(unit_begin_ == begin, "a prompt's unit without its first row");
    part.context_tokens = std::min(end, rows.context_tokens);
    part.query_count = part.context_tokens - position;
    part.chosen_row = std::ssize(choosing_) - 1;
    parts_.push_back(part);
    position = part.context_tokens;
  }
}

double PromptChoices::context_tokens() const {
  double tokens = 0.0;
  for (const AttentionSegment& part : parts_) {
    const auto rows = static_cast<double>(part.query_count);
    tokens += rows * (static_cast<double>(part.context_tokens) - (rows - 1.0) / 2.0);
  }
  return tokens;
}

}  // namespace triphase
