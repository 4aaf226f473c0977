#include "models/attention/prompt_choices.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {
namespace {

// Ordinals of one list that a query at `position` attends.
std::int64_t seen_of_list(const PromptChoices::Part& part, std::int64_t list,
                          std::int64_t position) {
  const std::int32_t* begin = part.lists.tokens + list * part.lists.capacity;
  return std::upper_bound(begin, begin + part.lists.counts[list], position) - begin;
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
      chosen_ = method.choose_for_prompt(unit, q, part.query_begin, end - begin);
      // The next unit's choice takes its memory.
      chosen_tokens_.assign(chosen_.tokens, chosen_.tokens + chosen_.lists * chosen_.capacity);
      chosen_counts_.assign(chosen_.counts, chosen_.counts + chosen_.lists);
      unit_begin_ = begin;
    }
    TRIPHASE_CHECK(unit_begin_ == begin, "a prompt's unit without its first row");
    part.context_tokens = std::min(end, rows.context_tokens);
    part.query_count = part.context_tokens - position;
    add_part(part);
    position = part.context_tokens;
  }
}

// The unit's choice without the tokens after the segment's last row.
void PromptChoices::add_part(const AttentionSegment& segment) {
  if (parts_.size() <= used_) parts_.emplace_back();
  Part& part = parts_[used_++];
  part.tokens = chosen_tokens_;
  part.counts = chosen_counts_;
  part.lists = chosen_;
  part.lists.tokens = part.tokens.data();
  part.lists.counts = part.counts.data();
  for (std::int64_t list = 0; list < part.lists.lists; ++list) {
    part.counts[static_cast<std::size_t>(list)] =
        static_cast<std::int32_t>(seen_of_list(part, list, segment.context_tokens - 1));
  }
  part.segment = segment;
  part.segment.window = 0;
  part.segment.chosen = &part.lists;
}

double PromptChoices::attended_tokens(const Part& part) {
  const std::int64_t first = part.segment.context_tokens - part.segment.query_count;
  std::int64_t seen = 0;
  for (std::int64_t list = 0; list < part.lists.lists; ++list) {
    for (std::int64_t i = 0; i < part.segment.query_count; ++i) {
      seen += seen_of_list(part, list, first + i);
    }
  }
  return static_cast<double>(seen) / static_cast<double>(part.lists.lists);
}

double PromptChoices::context_tokens(const Part& part) {
  const auto rows = static_cast<double>(part.segment.query_count);
  return rows * (static_cast<double>(part.segment.context_tokens) - (rows - 1.0) / 2.0);
}

}  // namespace triphase
