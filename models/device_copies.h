#pragma once

// A fresh copy of what already is where it is needed, in every step: K and V of decoded rows whose
// line has all of its KV at home on the device are copied to pages beside it, layer by layer, and
// attended there (a handicap of FlexGen). The numbers stay the same. Not thread safe; the device
// must outlive it.

#include <cstdint>
#include <span>
#include <vector>

#include "base/device.h"
#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "models/kv_step.h"

namespace triphase {

class DeviceCopies {
 public:
  explicit DeviceCopies(Device& device) : device_(&device) {}

  // The layer's first group is about to be attended: the copies of the layer before are spent.
  void begin_layer(const KvStore& store);
  // `segments`, as the step has just returned them, with copied pages for the rows concerned. What
  // several of them share is copied once. INT8: codes alone. Valid until the next call.
  [[nodiscard]] std::span<const AttentionSegment> copy(const KvStore& store, const KvStep& step,
                                                       std::span<const AttentionSegment> segments,
                                                       Stream& stream);

  // Copied since the start.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] PageId copy_of(const KvStore& store, PageId page, Stream& stream);

  Device* device_;
  std::int64_t used_ = 0;          // copies of the layer at hand
  std::int64_t layer_ = 0;         // layers begun since the start
  std::vector<std::int64_t> met_;  // by device page: the layer in which it was last copied
  std::vector<PageId> copies_;     // and where to
  std::vector<std::vector<PageId>> tables_;
  std::vector<AttentionSegment> segments_;
  std::uint64_t bytes_ = 0;
};

}  // namespace triphase
