#include "kernels/cuda/page_choice.h"

#include <algorithm>

#include "base/rounding.h"
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/select_rows.h"

namespace triphase::cuda {
namespace {

struct QuestTables {
  const PageChoice* choices = nullptr;
  const std::int32_t* lengths = nullptr;
  const std::int32_t* pages = nullptr;  // that a context has
  const std::int32_t* ks = nullptr;     // that are chosen
};

QuestTables send_quest_tables(const SparseCall& call, std::span<const AttentionSegment> rows,
                              std::span<const PageChoice> choices, std::int64_t page_tokens) {
  const std::size_t count = rows.size();
  std::vector<std::int32_t>& words = call.memory.words;
  words.assign(3 * count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t context = rows[i].context_tokens;
    words[i] = static_cast<std::int32_t>(context);
    words[count + i] = static_cast<std::int32_t>(ceil_div(context, page_tokens));
    words[2 * count + i] = static_cast<std::int32_t>(choices[i].pages);
  }
  call.memory.arguments->reserve(choices.size_bytes() + words.size() * sizeof(std::int32_t), 2,
                                 call.stream);
  const PageChoice* sent_choices = call.send(choices);
  const std::int32_t* sent = call.send(std::span<const std::int32_t>(words));
  return {sent_choices, sent, sent + count, sent + 2 * count};
}

}  // namespace

void bound_pages(const SparseCall& call, const KvLayerView& cache,
                 std::span<const AttentionSegment> rows, std::span<const PageBounds> bounds,
                 std::int64_t page_tokens, std::int64_t layer) {
  const auto shape = [&](const AttentionSegment& row) {
    return shape_of(cache, row) + ", " + shape_text({{"tokens", page_tokens}});
  };
  if (rows.empty()) return;
  BoundPages bounded;
  bounded.tokens = page_tokens;
  bounded.layer = layer;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_keys(cache, rows[i], "bound_pages");
    require(rows.size() == bounds.size() && page_tokens > 0 && bounds[i].data != nullptr &&
                bounds[i].first_token >= 0,
            "bound_pages", "no bounds, or a page without tokens", [&] { return shape(rows[i]); });
    const std::int64_t first = bounds[i].first_token / page_tokens;
    bounded.most_pages =
        std::max(bounded.most_pages, ceil_div(rows[i].context_tokens, page_tokens) - first);
  }
  if (bounded.most_pages <= 0) return;
  const KeyTables tables = send_tables(call, cache, rows, {}, false);
  bounded.bounds = call.send(bounds);
  if (call.announces()) return;
  bound_pages(score_keys_of(cache, tables), bounded, call.handle);
}

Selection choose_pages(const SparseCall& call, const ConstMatrix& q, std::int64_t heads,
                       std::int64_t kv_heads, std::span<const AttentionSegment> rows,
                       std::span<const PageChoice> choices, std::int64_t page_tokens,
                       std::int64_t layer) {
  std::vector<RowLimits> limits;
  std::int64_t longest = 0;
  std::int64_t most_pages = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t context = rows[i].context_tokens;
    const auto shape = [&] {
      return shape_of(q, rows[i].query_begin, heads, kv_heads) + ", " +
             shape_text({{"context_tokens", context}, {"tokens", page_tokens}});
    };
    check_query(q, rows[i].query_begin, heads, kv_heads, "choose_by_pages", shape);
    require(rows.size() == choices.size() && page_tokens > 0 && choices[i].bounds != nullptr &&
                choices[i].pages > 0 && choices[i].pages <= ceil_div(context, page_tokens),
            "choose_by_pages", "no bounds, or more pages than there are", shape);
    limits.push_back({std::min(choices[i].pages * page_tokens, context), page_tokens});
    longest = std::max(longest, context);
    most_pages = std::max(most_pages, choices[i].pages);
  }
  if (rows.empty()) return {};
  const MadeLists lists = make_lists(call, limits, kv_heads, 0);
  const std::int64_t stride = ceil_div(longest, page_tokens);
  // Each row has its scores, its chosen pages and their number.
  const std::int64_t scores_bytes = cuda_region_bytes(4 * kv_heads * stride);
  const std::int64_t pages_bytes = cuda_region_bytes(4 * kv_heads * most_pages);
  const std::int64_t row_bytes = scores_bytes + pages_bytes + cuda_region_bytes(4 * kv_heads);
  std::byte* base = call.scratch(row_bytes);
  const std::size_t most = call.memory.scratch.bytes() / static_cast<std::size_t>(row_bytes);
  const auto alike = [](std::size_t, std::size_t) { return true; };
  for_runs(rows, most, alike, [&](std::size_t first, std::size_t run) {
    const auto count = static_cast<std::int64_t>(run);
    auto* scores = reinterpret_cast<float*>(base);
    auto* pages = reinterpret_cast<std::int32_t*>(base + count * scores_bytes);
    auto* counts = reinterpret_cast<std::int32_t*>(base + count * (scores_bytes + pages_bytes));
    const QuestTables tables =
        send_quest_tables(call, rows.subspan(first, run), choices.subspan(first, run), page_tokens);
    if (call.announces()) return;
    const std::int64_t head_dim = q.cols / heads;
    score_quest({.choices = tables.choices,
                 .layer = layer,
                 .lengths = tables.lengths,
                 .sequences = count,
                 .max_length = longest,
                 .tokens = page_tokens,
                 .kv_heads = kv_heads,
                 .head_dim = head_dim},
                query_of(q, rows[first].query_begin, heads), scores, stride, call.handle);
    select_top({.scores = scores,
                .score_stride = stride,
                .lengths = tables.pages,
                .rows = count * kv_heads,
                .rows_per_sequence = kv_heads,
                .max_length = stride,
                .local = 1,
                .ks = tables.ks,
                .indices = pages,
                .capacity = most_pages,
                .counts = counts},
               most_pages, call.handle);
    const MadeLists part = lists.from(first, 0, kv_heads);
    expand_pages(pages, most_pages, counts, count * kv_heads, page_tokens, tables.lengths, kv_heads,
                 part.tokens, part.capacity, part.counts, call.handle);
  });
  return lists.selection(rows.size(), kv_heads, false);
}

}  // namespace triphase::cuda
