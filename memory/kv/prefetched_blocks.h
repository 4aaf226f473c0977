#pragma once

// Blocks on the host whose K and V of some layer were sent to staging pages before the step that
// reads them begins, while the link would idle. A block is found by where it was read from, so one
// that was moved, ended or replaced in between is not found. Blocks are sent in ranges of pages,
// each by one transfer. Compute waits for a range before it reads it.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "memory/transfer/transfer_engine.h"
#include "scheduler/kv/kv_block_table.h"

namespace triphase {

class PrefetchedBlocks {
 public:
  struct Source {
    std::int64_t layer = 0;
    std::int32_t block_index = -1;  // KvBlockTable::number
    std::uint64_t block_id = 0;     // KvBlock::id
    std::int32_t host_block = -1;   // KvBlock::host_block
  };
  // Where a layer of the block would be read from; nothing: it is not on the host.
  [[nodiscard]] static std::optional<Source> source_of(const KvBlockTable& blocks, LayerId layer,
                                                       std::int64_t position);

  struct Found {
    PageId page;
    std::int64_t range = 0;  // that the block is in, from 0
  };

  // `transfers` may be null where nothing is prefetched.
  explicit PrefetchedBlocks(TransferEngine* transfers) : transfers_(transfers) {}

  [[nodiscard]] bool empty() const { return tickets_.empty(); }
  [[nodiscard]] std::int64_t ranges() const { return static_cast<std::int64_t>(tickets_.size()); }
  [[nodiscard]] Ticket ticket(std::int64_t range) const {
    return tickets_[static_cast<std::size_t>(range)];
  }
  // Layers [0, layers()) have prefetched blocks.
  [[nodiscard]] std::int64_t layers() const { return layers_; }

  // Adds a block to the range that is being made. It must not have been added before.
  void add(const Source& source, PageId page);
  // That range's blocks are being transferred.
  void end_range(Ticket ticket);

  // Nothing: it was not prefetched, or not from there.
  [[nodiscard]] std::optional<Found> find(const Source& source) const;
  // Finds the block for a step that reads it, and notes that it is read.
  [[nodiscard]] std::optional<Found> use(const Source& source);
  // Whether this block is read from this host block.
  [[nodiscard]] bool reads(std::int32_t block_index, std::int32_t host_block) const;

  // What compute gets from now on runs after the first `count` ranges; throws what made one fail,
  // if that is known by now.
  void hold(std::int64_t count);
  // The block gives up this host block: if it is still read from there, compute is held.
  void stop_reading(std::int32_t block_index, std::int32_t host_block);
  // The step that should read them has: holds compute for all and forgets them.
  void end();
  // Forgets them. Their transfers have finished, or compute is held for them.
  void clear();

  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  // How many of these blocks no step has used.
  [[nodiscard]] std::int64_t unused() const { return unused_; }
  // Since the start: blocks that were prefetched, and how many of these no step read (yet).
  struct Use {
    std::uint64_t brought = 0;
    std::uint64_t unused = 0;
  };
  [[nodiscard]] Use use_so_far() const {
    return {ended_.brought + static_cast<std::uint64_t>(blocks()),
            ended_.unused + static_cast<std::uint64_t>(unused_)};
  }

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

  TransferEngine* transfers_;
  std::unordered_map<std::uint64_t, Block> blocks_;
  std::vector<Ticket> tickets_;
  std::int64_t layers_ = 0;
  std::int64_t unused_ = 0;
  std::int64_t held_ = 0;  // leading ranges that compute is held for
  Use ended_;              // by the blocks that are forgotten
};

}  // namespace triphase
