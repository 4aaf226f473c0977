#pragma once

// Host blocks and input blocks that were written since the last time somebody asked. Copies of
// their tokens in the device's token cache are out of date (kernels/kv_resolver.h). Input block i
// has the number host_blocks + i. PURE bookkeeping.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace triphase {

class WrittenBlocks {
 public:
  // Notes nothing where no tokens are cached: nobody asks then.
  WrittenBlocks(std::int64_t host_blocks, std::int64_t input_blocks, bool tokens_are_cached)
      : host_blocks_(static_cast<std::int32_t>(host_blocks)),
        written_(tokens_are_cached ? static_cast<std::size_t>(host_blocks + input_blocks) : 0) {}

  void note_host_block(std::int32_t host_block) { note(host_block); }
  void note_input_block(std::int32_t input_block) { note(host_blocks_ + input_block); }

  // Their numbers, each once, in the order of their first writes.
  [[nodiscard]] std::vector<std::int32_t> take() {
    for (const std::int32_t number : numbers_) written_[number] = false;
    return std::exchange(numbers_, {});
  }

 private:
  void note(std::int32_t number) {
    if (written_.empty() || written_[number]) return;
    written_[number] = true;
    numbers_.push_back(number);
  }

  std::int32_t host_blocks_;
  std::vector<bool> written_;  // by number
  std::vector<std::int32_t> numbers_;
};

}  // namespace triphase
