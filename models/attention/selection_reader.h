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
                                                  Stream& stream) {
    begin(selection, heads, stream);
    if (!device_->runs_at_once()) stream.synchronize();
    return finish();
  }
  // The same in two parts, so that several can share a wait: the stream is synchronized between
  // them.
  void begin(const Selection& selection, std::int64_t heads, Stream& stream);
  std::span<const TokenChoice> finish();
  // What finish() returned.
  [[nodiscard]] std::span<const TokenChoice> choices() const {
    return std::span(choices_).first(static_cast<std::size_t>(selection_.rows));
  }

 private:
  Device* device_;
  HostBuffer arrived_;
  std::size_t capacity_ = 0;  // of arrived_, in words
  Selection selection_;       // where it is read
  std::int64_t heads_ = 0;
  std::vector<TokenChoice> choices_;
};

}  // namespace triphase
