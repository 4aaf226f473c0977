#pragma once

// Brings a Selection to the host, where it has to know which tokens were chosen: to fetch them from
// its own memory, or to show them. One wait for all rows; none where work runs at once.

#include <span>
#include <vector>

#include "memory/memory_pool.h"
#include "models/attention/attention_method.h"

namespace triphase {

class SelectionReader {
 public:
  explicit SelectionReader(Device& device) : device_(&device) {}

  // A choice for each row, valid until the next call; alpha of `heads` query heads.
  [[nodiscard]] std::span<const TokenChoice> read(const Selection& selection, std::int64_t heads,
                                                  Stream& stream);

 private:
  Device* device_;
  HostBuffer arrived_;
  std::size_t capacity_ = 0;  // of arrived_, in words
  std::vector<TokenChoice> choices_;
};

}  // namespace triphase
