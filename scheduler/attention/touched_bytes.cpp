#include "scheduler/attention/touched_bytes.h"

#include <algorithm>

namespace triphase {

std::uint64_t touched_bytes(const AttentionOptions& options, const TouchedShape& shape,
                            std::int64_t context, std::int64_t attended) {
  const std::int64_t row = shape.head_dim * shape.element_bytes;  // one key or value
  std::int64_t per_head = 2 * attended * row;
  std::int64_t shared = 0;  // of all KV heads together
  switch (options.kind) {
    case AttentionKind::kSparq:
      // Without K^T the channels lie scattered over whole keys.
      per_head += context * shape.element_bytes *
                  (keeps_key_columns(options) ? std::min(options.sparq.rank, shape.head_dim)
                                              : shape.head_dim);
      per_head += 8 * shape.head_dim;  // the sum of V, read and written
      break;
    case AttentionKind::kTopk:
      per_head += (context - attended) * row;  // every key, chosen values
      break;
    case AttentionKind::kH2o:
      per_head += 8 * attended;
      break;
    case AttentionKind::kSwa:
      shared = 8 * attended;  // the newest row of the history, written and later taken out
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

}  // namespace triphase
