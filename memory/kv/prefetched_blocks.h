#pragma once

// Blocks that are on the host and whose K and V of some layer go to staging pages before the step
// that reads them begins, while the link would idle. What a block is found by says where it was
// read from, so that one that was moved, ended or replaced in between is not found. Blocks are
// brought in ranges of pages, each by one transfer. PURE bookkeeping; KvStore waits.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "memory/transfer/transfer_engine.h"

namespace triphase {

class PrefetchedBlocks {
 public:
  struct Source {
    std::int64_t layer = 0;
    std::int32_t block_index = -1;  // KvBook::block_index
    std::uint64_t block_id = 0;     // KvBlock::id
    std::int32_t host_block = -1;   // KvBlock::host_block
  };
  struct Found {
    PageId page;
    std::int64_t range = 0;  // that the block is in, from 0
  };

  [[nodiscard]] bool empty() const { return tickets_.empty(); }
  [[nodiscard]] std::int64_t ranges() const { return static_cast<std::int64_t>(tickets_.size()); }
  [[nodiscard]] Ticket ticket(std::int64_t range) const {
    return tickets_[static_cast<std::size_t>(range)];
  }
  // Layers [0, layers()) have blocks here.
  [[nodiscard]] std::int64_t layers() const { return layers_; }

  // A block of the range that is being made; it must not be here yet.
  void add(const Source& source, PageId page);
  // That range's blocks are on their way.
  void end_range(Ticket ticket);

  // Nothing: it was not brought, or not from there.
  [[nodiscard]] std::optional<Found> find(const Source& source) const;
  // The same, for a step that reads it there.
  [[nodiscard]] std::optional<Found> use(const Source& source);
  // Whether this block is read from this host block.
  [[nodiscard]] bool reads(std::int32_t block_index, std::int32_t host_block) const;

  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  // Of them, those that no step has used.
  [[nodiscard]] std::int64_t unused() const { return unused_; }

  void clear();

 private:
  struct Block {
    std::uint64_t id = 0;
    std::int32_t host_block = -1;
    Found found;
    bool used = false;
  };
  [[nodiscard]] static std::uint64_t key(std::int64_t layer, std::int32_t block_index) {
    return static_cast<std::uint64_t>(layer) << 32 | static_cast<std::uint32_t>(block_index);
  }

  std::unordered_map<std::uint64_t, Block> blocks_;
  std::vector<Ticket> tickets_;
  std::int64_t layers_ = 0;
  std::int64_t unused_ = 0;
};

}  // namespace triphase
