#include "memory/kv/step_block_tables.h"

#include <algorithm>

namespace triphase {

BlockTables StepBlockTables::make(const KvStore& store, std::span<const BatchSegment> rows) {
  const KvBook& book = store.book();
  const KvMemory& memory = store.memory();
  std::int64_t most = 1;
  for (const BatchSegment& entry : rows) most = std::max(most, book.table(entry.sequence).size());
  const std::size_t entries = rows.size() * static_cast<std::size_t>(most);
  const std::int64_t block_tokens = memory.shape().block_tokens;
  const bool quantized = memory.shape().quantized();
  const LayerId first = memory.shape().sets.first(0);
  pages_.assign(entries, -1);
  host_blocks_.assign(entries, -1);
  scale_pages_.assign(quantized ? entries : 0, 0);
  lengths_.clear();
  slots_.clear();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const BatchSegment& entry = rows[row];
    const KvBlockTable table = book.table(entry.sequence);
    const std::size_t row_begin = row * static_cast<std::size_t>(most);
    for (std::int64_t block = 0; block < table.size(); ++block) {
      const std::size_t at = row_begin + static_cast<std::size_t>(block);
      const KvBlock& of = table[block];
      if (of.on_device()) {
        pages_[at] = memory.page(of, first).value;
      } else {
        host_blocks_[at] =
            of.place == BlockPlace::kRecomputable
                ? static_cast<std::int32_t>(memory.sizes().host_blocks) + of.input_block
                : of.host_block;
      }
      if (quantized) scale_pages_[at] = table.number(block);
    }
    lengths_.push_back(static_cast<std::int32_t>(entry.first_position + entry.count));
    if (quantized) continue;
    for (std::int64_t i = 0; i < entry.count; ++i) {
      const std::int64_t position = entry.first_position + i;
      const KvBlock& own = table[position / block_tokens];
      slots_.push_back(static_cast<std::int32_t>(memory.page(own, first).value * block_tokens +
                                                 position % block_tokens));
    }
  }
  return {.rows = std::ssize(rows),
          .row_blocks = most,
          .pages = pages_,
          .host_blocks = host_blocks_,
          .scale_pages = scale_pages_,
          .lengths = lengths_,
          .slots = slots_};
}

}  // namespace triphase
