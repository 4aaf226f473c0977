#include "models/attention/prompt_choices.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {
namespace {

// Ordinals of part.tokens of one list that a query at `position` attends.
std::int64_t seen_of_list(const PromptChoices::Part& part, std::size_t list,
                          std::int64_t position) {
  const auto begin = part.tokens.begin() + part.begins[list];
  const auto end = part.tokens.begin() + part.begins[list + 1];
  return std::upper_bound(begin, end, position) - begin;
}

}  // namespace

void PromptChoices::begin_layer() {
  used_ = 0;
  unit_begin_ = -1;
}

void PromptChoices::add(AttentionMethod& method, const LayerCall& call, std::int64_t prompt_tokens,
                        ConstMatrix q, std::vector<AttentionSegment>& dense) {
  const AttentionSegment& rows = call.keys;
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
    if (position == begin) {
      TRIPHASE_CHECK(part.query_begin + end - begin <= q.rows, "a prompt's unit cut by a step");
      LayerCall unit = call;
      unit.keys.context_tokens = end;
      method.choose_for_prompt(unit, q, part.query_begin, end - begin, choice_);
      unit_begin_ = begin;
    }
    TRIPHASE_CHECK(unit_begin_ == begin, "a prompt's unit without its first row");
    part.context_tokens = std::min(end, rows.context_tokens);
    part.query_count = part.context_tokens - position;
    add_part(part);
    position = part.context_tokens;
  }
}

// The unit's choice, less what lies behind the segment's last row.
void PromptChoices::add_part(const AttentionSegment& segment) {
  if (parts_.size() <= used_) parts_.emplace_back();
  Part& part = parts_[used_++];
  part.segment = segment;
  part.segment.window = 0;
  part.begins.assign(1, 0);
  part.tokens.clear();
  for (std::size_t list = 0; list + 1 < choice_.begins.size(); ++list) {
    const auto begin = choice_.tokens.begin() + choice_.begins[list];
    const auto end = choice_.tokens.begin() + choice_.begins[list + 1];
    part.tokens.insert(part.tokens.end(), begin,
                       std::lower_bound(begin, end, segment.context_tokens));
    part.begins.push_back(static_cast<std::int32_t>(part.tokens.size()));
  }
}

double PromptChoices::attended_tokens(const Part& part) {
  const std::int64_t first = part.segment.context_tokens - part.segment.query_count;
  std::int64_t seen = 0;
  for (std::size_t list = 0; list + 1 < part.begins.size(); ++list) {
    for (std::int64_t i = 0; i < part.segment.query_count; ++i) {
      seen += seen_of_list(part, list, first + i);
    }
  }
  return static_cast<double>(seen) / static_cast<double>(part.begins.size() - 1);
}

double PromptChoices::context_tokens(const Part& part) {
  const auto rows = static_cast<double>(part.segment.query_count);
  return rows * (static_cast<double>(part.segment.context_tokens) - (rows - 1.0) / 2.0);
}

}  // namespace triphase
