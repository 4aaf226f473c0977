#include "models/channel_reads.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

void ChannelReads::begin(KvStore& store, LayerId layer) {
  store_ = &store;
  layer_ = layer;
  expected_ = wanted_ = started_ = done_ = 0;
  ring_.reset(store.sizes().channel_blocks);
}

void ChannelReads::expect(std::size_t segment, std::span<const std::int32_t> columns) {
  if (rows_.size() == expected_) rows_.emplace_back();
  Row& row = rows_[expected_++];
  row.segment = segment;
  row.columns = columns;
  row.ticket = {};
}

// Rows are few, and asked for in their order.
const ChannelReads::Row* ChannelReads::find(std::size_t segment) const {
  for (std::size_t index = done_; index < expected_; ++index) {
    if (rows_[index].segment == segment) return &rows_[index];
  }
  return nullptr;
}

void ChannelReads::want(std::size_t segment, std::span<const std::int32_t> channels) {
  TRIPHASE_CHECK(wanted_ < expected_ && rows_[wanted_].segment == segment,
                 "channels of an expected segment, in order");
  Row& row = rows_[wanted_++];
  row.channels.assign(channels.begin(), channels.end());
  start();
}

void ChannelReads::start() {
  while (started_ < wanted_) {
    Row& row = rows_[started_];
    lay_out(row);
    const std::optional<std::int64_t> first =
        ring_.take(row.blocks, static_cast<std::int64_t>(started_));
    if (!first) return;
    row.first = *first;
    start(row);
    ++started_;
  }
}

void ChannelReads::lay_out(Row& row) {
  sorted_.clear();
  for (const std::int32_t place : row.columns) {
    if (place != HostKeyColumns::kNone) sorted_.push_back(place);
  }
  std::ranges::sort(sorted_);
  // A gap comes along where a piece more for every channel would cost the link more.
  const std::int64_t gap =
      store_->transfers()->piece_cost_bytes() / store_->host_columns().run_bytes();
  const std::int64_t room = store_->sizes().channel_blocks;
  auto left = static_cast<std::int64_t>(sorted_.size());
  TRIPHASE_CHECK(left <= room, "a sequence's blocks on the host exceed the channels' staging");
  runs_.clear();
  row.blocks = 0;
  for (const std::int32_t place : sorted_) {
    if (!runs_.empty()) {
      Run& last = runs_.back();
      const std::int64_t between = place - (last.place + last.count);
      if (between <= gap && row.blocks + between + left <= room) {
        last.count += between + 1;
        row.blocks += between + 1;
        --left;
        continue;
      }
    }
    runs_.push_back({place, 1});
    ++row.blocks;
    --left;
  }
  row.places.assign(row.columns.size(), -1);
  for (std::size_t block = 0; block < row.columns.size(); ++block) {
    const std::int32_t place = row.columns[block];
    if (place == HostKeyColumns::kNone) continue;
    std::int64_t first = 0;
    for (const Run& run : runs_) {
      if (place < run.place + run.count) {
        row.places[block] = static_cast<std::int32_t>(first + place - run.place);
        break;
      }
      first += run.count;
    }
  }
}

void ChannelReads::start(Row& row) {
  const HostKeyColumns& columns = store_->host_columns();
  const KvStore::Shape& shape = store_->shape();
  const std::int64_t block = columns.run_bytes();
  const std::int64_t rank = shape.host_channels;
  TRIPHASE_CHECK(static_cast<std::int64_t>(row.channels.size()) == shape.kv_heads * rank,
                 "as many channels as there is staging for");
  std::byte* to = store_->channel_staging() +
                  row.first * static_cast<std::int64_t>(KvStore::channel_bytes(shape));
  pieces_.clear();
  for (std::size_t index = 0; index < row.channels.size(); ++index) {
    const std::int64_t head = static_cast<std::int64_t>(index) / rank;
    for (const Run& run : runs_) {
      const auto bytes = static_cast<std::size_t>(run.count * block);
      pieces_.push_back({to, columns.at(layer_, head, row.channels[index], run.place), bytes});
      to += bytes;
      bytes_ += bytes;
    }
  }
  row.ticket = store_->transfers()->move_pieces(Lane::kToDevice, pieces_);
}

GatheredChannels ChannelReads::arrived(std::size_t segment) {
  TRIPHASE_CHECK(done_ < started_ && rows_[done_].segment == segment,
                 "channels that were wanted, in order");
  const Row& row = rows_[done_];
  store_->transfers()->wait(row.ticket);
  const auto first = row.first * static_cast<std::int64_t>(KvStore::channel_bytes(store_->shape()));
  return {store_->channel_staging() + first, row.blocks, row.places};
}

void ChannelReads::done(std::size_t segment) {
  TRIPHASE_CHECK(done_ < started_ && rows_[done_].segment == segment, "a row that arrived");
  ++done_;
  ring_.give_back_before(static_cast<std::int64_t>(done_));
  start();
}

}  // namespace triphase
