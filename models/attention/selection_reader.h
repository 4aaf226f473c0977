#pragma once

// Brings a Selection to the host, to be shown. One wait for all rows; none where work runs at once.

#include <span>
#include <vector>

#include "memory/memory_pool.h"
#include "models/attention/attention_method.h"

namespace triphase {

// What one row attends: list h holds tokens [begins[h], begins[h + 1]).
struct TokenChoice {
  bool dense = false;  // the whole context; everything else is empty
  std::vector<std::int32_t> begins{0};
  std::vector<std::int32_t> tokens;
  // Empty, or per query head the share of the true softmax weight that the tokens hold.
  std::vector<float> alpha;
};

class SelectionReader {
 public:
  explicit SelectionReader(Device& device) : device_(&device) {}

  // A choice for each row, valid until the next call; alpha of `heads` query heads.
  [[nodiscard]] std::span<const TokenChoice> read(const Selection& selection, std::int64_t heads,
                                                  Stream& stream);

 private:
  // The same lists in host memory.
  [[nodiscard]] Selection arrived(const Selection& selection, std::int64_t heads, Stream& stream);

  Device* device_;
  HostBuffer arrived_;
  std::size_t capacity_ = 0;  // of arrived_, in words
  std::vector<TokenChoice> choices_;
};

}  // namespace triphase
