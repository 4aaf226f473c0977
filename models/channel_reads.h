#pragma once

// Decoded rows that choose by channels of keys whose K^T is on the host: brings the channels that
// each row's query picked, of the blocks that are not on the device, into the store's channel
// staging. Rows' channels are on their way one after another while earlier rows choose. Kept
// between uses to reuse its memory; not thread safe. For one group of segments the caller does
//
//   begin(); expect() for some of its segments; then in their order
//   want() for each of those;
//   for each of those: arrived(), choose by what it returned, done()

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "models/staging_ring.h"

namespace triphase {

class ChannelReads {
 public:
  void begin(KvStore& store, LayerId layer);
  // The segment's blocks that are on the host: by block of the context the place of its K^T there,
  // HostKeyColumns::kNone for blocks on the device. Must stay until done().
  void expect(std::size_t segment, std::span<const std::int32_t> columns);
  [[nodiscard]] bool expects(std::size_t segment) const { return find(segment) != nullptr; }

  // channels [kv_head][rank]; their transfer starts, or will when there is room.
  void want(std::size_t segment, std::span<const std::int32_t> channels);
  // Waits for them; throws what made their transfer fail. Valid until done().
  [[nodiscard]] GatheredChannels arrived(std::size_t segment);
  void done(std::size_t segment);

  // Brought since the start, gaps between blocks included.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  struct Row {
    std::size_t segment = 0;
    std::span<const std::int32_t> columns;
    std::vector<std::int32_t> channels;
    std::vector<std::int32_t> places;  // GatheredChannels
    std::int64_t blocks = 0;           // of staging, gaps included
    std::int64_t first = 0;            // of them
    Ticket ticket;
  };
  // Neighbouring places that are brought as one piece for each channel.
  struct Run {
    std::int32_t place = 0;
    std::int64_t count = 0;
  };

  [[nodiscard]] const Row* find(std::size_t segment) const;
  // Numbers the row's blocks by where they are on the host, so that neighbours travel together.
  void lay_out(Row& row);
  // Starts what there is room for.
  void start();
  void start(Row& row);

  KvStore* store_ = nullptr;
  LayerId layer_;
  std::vector<Row> rows_;
  std::size_t expected_ = 0;  // of rows_, in use
  std::size_t wanted_ = 0;    // of those, want() was called
  std::size_t started_ = 0;
  std::size_t done_ = 0;
  StagingRing ring_;
  std::vector<std::int32_t> sorted_;
  std::vector<Run> runs_;
  std::vector<BytePiece> pieces_;
  std::uint64_t bytes_ = 0;
};

}  // namespace triphase
