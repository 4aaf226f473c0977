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
    std::int64_t range = 0;  // the block's range, counted from 0
  };

  // `transfers` may be null where nothing is prefetched.
  explicit PrefetchedBlocks(TransferEngine* transfers) : transfers_(transfers) {}

  [[nodiscard]] bool empty() const { return tickets_.empty(); }
  [[nodiscard]] std::int64_t ranges() const { return std::ssize(tickets_); }
  [[nodiscard]] Ticket ticket(std::int64_t range) const { return tickets_[range]; }
  // Layers [0, layers()) have prefetched blocks.
  [[nodiscard]] std::int64_t layers() const { return layers_; }

  // Adds a block to the range that is being made. It must not have been added before.
  void add(const Source& source, PageId page);
  // Ends the range that is being made: `ticket` is the transfer of its blocks.
  void end_range(Ticket ticket);

  // Nothing: the block was not prefetched, or came from another host block.
  [[nodiscard]] std::optional<Found> find(const Source& source) const;
  // Finds the block for a step that reads it, and notes that it is read.
  [[nodiscard]] std::optional<Found> use(const Source& source);
  // Whether the block was prefetched from this host block.
  [[nodiscard]] bool reads(std::int32_t block_index, std::int32_t host_block) const;

  // Work that compute gets from now on waits for the transfers of the first `count` ranges. Throws
  // the error of a transfer that is known to have failed.
  void hold(std::int64_t count);
  // The block gives up this host block: compute waits if a transfer may still read it.
  void stop_reading(std::int32_t block_index, std::int32_t host_block);
  // The step that reads the blocks is over: compute waits for all transfers, and all are forgotten.
  void end();
  // Forgets all blocks. Their transfers have finished, or compute waits for them.
  void clear();

  [[nodiscard]] std::int64_t blocks() const { return std::ssize(blocks_); }
  // Blocks that no step has read so far.
  [[nodiscard]] std::int64_t unused() const { return unused_; }
  // Blocks prefetched since the start, and those that no step has read so far.
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
  std::int64_t held_ = 0;  // leading ranges whose transfers compute waits for
  Use ended_;              // by the blocks that are forgotten
};

}  // namespace triphase
