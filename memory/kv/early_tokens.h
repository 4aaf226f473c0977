#pragma once

// Tokens on the host that go to slots of the token cache before the step that chooses them begins,
// in ranges that are transfers of their own, each of one layer. Knows what is read meanwhile and
// which slots wait for it. PURE bookkeeping; KvStore waits.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/transfer/transfer_engine.h"

namespace triphase {

class EarlyTokens {
 public:
  // Of the token cache.
  struct Slot {
    std::int64_t layer = 0;
    std::int64_t part = 0;
    std::int32_t slot = 0;
  };

  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  [[nodiscard]] std::int64_t ranges() const { return static_cast<std::int64_t>(ranges_.size()); }
  [[nodiscard]] Ticket ticket(std::int64_t range) const {
    return ranges_[static_cast<std::size_t>(range)].ticket;
  }
  // How many ranges have arrived when all that was brought of a layer has; 0: there is none.
  [[nodiscard]] std::int64_t ranges_of(std::int64_t layer) const;

  // A slot of the range that is being made, and the block that its token is read from
  // (KvBook::block_index, host_block).
  void add(const Slot& slot, std::int32_t block_index, std::int32_t host_block);
  // That range's tokens are on their way, with so many bytes; they must be of one layer.
  void end_range(Ticket ticket, std::uint64_t bytes);

  // Whether this block is read from this host block.
  [[nodiscard]] bool reads(std::int32_t block_index, std::int32_t host_block) const;
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  void clear();

 private:
  struct Range {
    std::int64_t layer = 0;
    Ticket ticket;
  };

  std::vector<Range> ranges_;
  std::vector<Slot> slots_;
  std::unordered_map<std::int32_t, std::int32_t> blocks_;  // host block by block index
  std::uint64_t bytes_ = 0;
};

}  // namespace triphase
