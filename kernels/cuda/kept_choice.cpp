#include "kernels/cuda/kept_choice.h"

#include <algorithm>

#include "kernels/cuda/kept_tokens.h"

namespace triphase::cuda {
namespace {

std::string shape_of(const KeptTokens& kept) {
  return shape_text({{"lists", kept.lists}, {"room", kept.room}});
}

}  // namespace

void keep_every_token(const SparseCall& call, std::span<const KeptTokens> kept,
                      std::int64_t tokens) {
  if (kept.empty()) return;
  for (const KeptTokens& one : kept) {
    require(holds_tokens(one, tokens) && one.lists == kept.front().lists, "keep_all",
            "no room for the tokens", [&] {
              return shape_of(one) + ", " + shape_text({{"tokens", tokens}});
            });
  }
  keep_all(call.send(kept), std::ssize(kept), kept.front().lists, tokens, call.handle);
}

Selection choose_from_kept(const SparseCall& call, std::span<const KeptRow> rows,
                           std::int64_t layers) {
  if (rows.empty()) return {};
  const std::int64_t lists = rows.front().kept.lists;
  std::vector<RowLimits> limits;
  for (const KeptRow& row : rows) {
    require(is_kept_row(row) && row.kept.lists == lists, "keep_heaviest",
            "tokens beyond the context or the room", [&] {
              return shape_of(row.kept) + ", " +
                     shape_text({{"count", row.count},
                                 {"added", row.added},
                                 {"context", row.context},
                                 {"local", row.local},
                                 {"total", row.total}});
            });
    limits.push_back({tokens_left(row), row.local});
  }
  const MadeLists made = make_lists(call, limits, lists, 0, layers);
  const KeptRow* sent = call.send(rows);
  if (!call.announces()) {
    keep_heaviest(sent, std::ssize(rows), lists, layers, made.tokens, made.capacity, made.counts,
                  call.handle);
  }
  return made.selection(static_cast<std::size_t>(layers) * rows.size(), lists, false);
}

void add_to_kept(const SparseCall& call, const Selection& attended, std::int64_t heads,
                 std::span<const KeptWeights> rows, std::int64_t layer, bool beside) {
  if (rows.empty()) return;
  std::int64_t most_tokens = 0;
  for (const KeptWeights& row : rows) {
    require(holds_tokens(row.kept, row.count) && row.kept.lists == attended.lists &&
                row.attended >= 0 && row.attended < attended.rows && row.count <= attended.capacity,
            "add_kept_weights", "a row beyond the selection", [&] {
              return shape_of(row.kept) + ", " +
                     shape_text({{"rows", attended.rows},
                                 {"lists", attended.lists},
                                 {"capacity", attended.capacity},
                                 {"attended", row.attended},
                                 {"count", row.count}});
            });
    most_tokens = std::max(most_tokens, row.count);
  }
  const KeptWeights* sent = call.send(rows);
  if (call.announces()) return;
  add_kept_weights(sent, std::ssize(rows), attended.lists, scores_of(attended, heads), most_tokens,
                   layer, beside, call.handle);
}

}  // namespace triphase::cuda
