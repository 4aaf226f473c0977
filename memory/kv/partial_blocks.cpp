#include "memory/kv/partial_blocks.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

void PartialBlocks::begin_step(KvStore& store, std::span<const BatchSegment> rows) {
  store_ = &store;
  rows_ = rows;
  step_pages_.clear();
  runs_.clear();
  full_blocks_.clear();
}

std::span<const PageId> PartialBlocks::take_for_step(std::int64_t layers) {
  const auto one = [](const BatchSegment& entry) { return entry.count == 1; };
  if (!store_->memory().shape().quantized() || !std::ranges::all_of(rows_, one)) return {};
  const std::int64_t block = store_->memory().shape().block_tokens;
  for (LayerId layer(0); layer.value < layers; layer = LayerId(layer.value + 1)) {
    for (const BatchSegment& entry : rows_) {
      PageId& current = store_->partial_pages().current(entry.sequence, layer);
      if (entry.first_position % block == 0) current = store_->partial_pages().take();
      step_pages_.push_back(current);
    }
  }
  return step_pages_;
}

void PartialBlocks::begin_layer(LayerId layer) {
  const std::int64_t block = store_->memory().shape().block_tokens;
  runs_.clear();
  full_blocks_.clear();
  spent_.clear();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    const KvBlockTable blocks = store_->book().table(entry.sequence);
    PageId& current = store_->partial_pages().current(entry.sequence, layer);
    const std::int64_t end = entry.first_position + entry.count;
    for (std::int64_t position = entry.first_position; position < end;) {
      const std::int64_t own = position / block;
      const std::int64_t run_end = std::min(end, (own + 1) * block);
      if (position % block == 0) {
        if (step_pages_.empty()) current = store_->partial_pages().take();
      } else {
        TRIPHASE_CHECK(current.valid(), "a partial block without its page");
      }
      runs_.push_back({index, position, run_end - position, current});
      if (run_end % block == 0) {
        full_blocks_.push_back(
            {.partial_page = current,
             .page = store_->memory().page(blocks, own, layer),
             .scale_page = PageId(store_->memory().block_of(blocks, own, layer))});
        store_->transposed_k().forget(store_->book(), entry.sequence, layer, own);
        // Queries of this step still read the page; it is free once the layer is done.
        spent_.push_back({entry.sequence, layer, current});
      }
      position = run_end;
    }
  }
}

void PartialBlocks::end_layer() {
  for (const Spent& spent : spent_) {
    PageId& current = store_->partial_pages().current(spent.sequence, spent.layer);
    if (current == spent.page) current = PageId();
    store_->partial_pages().give_back(spent.page);
  }
  spent_.clear();
}

}  // namespace triphase
