#include "scheduler/attention/touched_bytes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace triphase {

std::uint64_t touched_bytes(const AttentionOptions& options, const TouchedShape& shape,
                            std::int64_t context, std::int64_t attended) {
  const std::int64_t row = shape.head_dim * shape.element_bytes;  // one key or value
  std::int64_t per_head = 2 * attended * row;                     // of a KV head
  std::int64_t shared = 0;                                        // of all KV heads together
  switch (options.kind) {
    case AttentionKind::kSparq:
      // Without K^T the channels lie scattered over whole keys.
      per_head += context * shape.element_bytes *
                  (keeps_key_columns(options) ? std::min(options.sparq.rank, shape.head_dim)
                                              : shape.head_dim);
      per_head += 8 * shape.head_dim;  // the sum of V, read and written
      break;
    case AttentionKind::kTopk:
      per_head = (context + attended) * row;  // every key, chosen values
      break;
    case AttentionKind::kH2o:
      per_head += 8 * attended;
      break;
    case AttentionKind::kSwa:
      shared = 8 * attended;  // the newest row of the history, written and later taken out
      break;
    case AttentionKind::kSqueezed:
      per_head += 4 * attended;                             // the list of tokens
      shared = shape.centroids * 4 * (shape.head_dim + 1);  // F32 means and counts
      break;
    case AttentionKind::kQuest:
      per_head +=
          2 * ((context + options.quest.page - 1) / options.quest.page) * shape.head_dim * 4;
      break;
    default:
      break;
  }
  return static_cast<std::uint64_t>(shape.kv_heads * per_head + shared);
}

namespace {

std::int64_t rank_of_compression(std::int64_t head_dim, double compression) {
  constexpr double kFewChannels = 16.0;
  constexpr double kMostForScores = 13.0 / 16.0;
  const double half = static_cast<double>(head_dim) * compression;
  const double most = std::floor(2.0 * half * kMostForScores);
  const auto rank = std::llround(std::max(half, std::min(kFewChannels, most)));
  return std::clamp<std::int64_t>(rank, 1, head_dim);
}

}  // namespace

void set_compression(AttentionOptions& options, const TouchedShape& shape, double compression) {
  const auto refuse = [&](const std::string& expected) {
    throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "compression")
        .found(std::to_string(compression) + " with --attention " +
               std::string(attention_name(options.kind)))
        .expected(expected);
  };
  if (!(compression > 0.0 && compression <= 1.0)) refuse("a share above 0, at most 1");
  double always = 0.0;  // share of dense attention's bytes that is read whatever the budget is
  double token = 1.0;   // and what a token of the budget costs, as a share of its key and value
  switch (options.kind) {
    case AttentionKind::kSparq:
      // K^T is what makes channels cheap; 1 is dense.
      options.sparq.kt = true;
      options.sparq.rank = rank_of_compression(shape.head_dim, compression);
      always = static_cast<double>(options.sparq.rank) / static_cast<double>(2 * shape.head_dim);
      break;
    case AttentionKind::kTopk:
      always = 0.5;
      token = 0.5;
      break;
    case AttentionKind::kQuest:
      always = 4.0 / static_cast<double>(options.quest.page * shape.element_bytes);
      break;
    default:
      break;
  }
  const double keep = compression == 1.0 ? 1.0 : (compression - always) / token;
  if (keep <= 0.0) refuse("more than " + std::to_string(always) + ", which it always reads");
  set_keep_ratio(options, keep);
}

}  // namespace triphase
