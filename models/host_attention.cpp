#include "models/host_attention.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "kernels/sizing/attention_workspace.h"

namespace triphase {
namespace {

std::uint64_t workspace_bytes(const ModelConfig& config, std::int64_t rows, std::int64_t context,
                              int threads) {
  return attention_workspace_bytes({.heads = config.heads,
                                    .kv_heads = config.kv_heads,
                                    .head_dim = config.head_dim,
                                    .max_query_rows = rows,
                                    .max_context = context,
                                    .threads = threads});
}

std::uint64_t sink_bytes(const ModelConfig& config) {
  return config.attention.sinks ? static_cast<std::uint64_t>(config.heads) * sizeof(float) : 0;
}

std::uint64_t row_bytes(const ModelConfig& config) {
  return static_cast<std::uint64_t>(config.q_width()) * sizeof(float);
}

}  // namespace

HostAttention::HostAttention(const ModelConfig& config, std::int64_t rows, std::int64_t context,
                             int threads, Ops& ops, MemoryPool& pool)
    : config_(config), ops_(&ops) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(rows) * row_bytes(config);
  if (config.attention.sinks) sinks_ = pool.allocate(sink_bytes(config), MemoryTag::kActivations);
  q_ = pool.allocate(bytes, MemoryTag::kActivations);
  out_ = pool.allocate(bytes, MemoryTag::kActivations);
  workspace_ =
      pool.allocate(workspace_bytes(config, rows, context, threads), MemoryTag::kWorkspace);
}

HostAttention::~HostAttention() {
  for (Ticket* ticket : {&kv_ticket_, &q_ticket_, &out_ticket_}) {
    try {
      wait(*ticket);
    } catch (const std::exception&) {
      // Nobody reads what this should have brought.
    }
  }
}

std::uint64_t HostAttention::host_bytes(const ModelConfig& config, std::int64_t rows,
                                        std::int64_t context, int threads) {
  return sink_bytes(config) + 2 * static_cast<std::uint64_t>(rows) * row_bytes(config) +
         workspace_bytes(config, rows, context, threads);
}

void HostAttention::wait(Ticket& ticket) const {
  const Ticket now = std::exchange(ticket, Ticket{});
  if (now.value != 0) store_->transfers()->wait(now);
}

void HostAttention::begin(KvStore& store, std::span<const BatchSegment> rows, const KvStep& step) {
  store_ = &store;
  finish();  // of a step that failed
  rows_ = rows;
  attended_.clear();
  pages_.clear();
  mirrors_ = false;
  const KvBook& book = store.book();
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const BatchSegment& entry = rows[index];
    const std::int64_t block_tokens = store.memory().shape().block_tokens;
    const std::int64_t end = entry.first_position + entry.count;
    for (std::int64_t block = entry.first_position / block_tokens;
         block * block_tokens < end && !mirrors_; ++block) {
      mirrors_ = book.table(entry.sequence)[block].mirror() >= 0;
    }
    if (!step.on_host(index)) continue;
    const std::int64_t blocks = book.table(entry.sequence).size();
    attended_.push_back({index, pages_.size(), static_cast<std::size_t>(blocks)});
    for (std::int64_t block = 0; block < blocks; ++block) {
      pages_.emplace_back(book.table(entry.sequence)[block].host_copy());
    }
  }
}

KvLayerView HostAttention::view(LayerId layer) const {
  const KvShape& shape = store_->memory().shape();
  const KvGeometry geometry = store_->memory().geometry();
  std::byte* base =
      geometry.host + store_->memory().host_record(0, layer, 0) * geometry.record_bytes();
  return {.k = base,
          .v = base + geometry.head_bytes,
          .dtype = shape.dtype,
          .page_tokens = shape.block_tokens,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .records = true};
}

void HostAttention::send(LayerId layer, ConstMatrix q, const float* sinks) {
  if (!mirrors_ && !active()) return;
  store_new_tokens(layer);
  if (!active()) return;
  const auto width = static_cast<std::size_t>(config_.q_width());
  pieces_.clear();
  for (const Row& row : attended_) {
    const auto* from =
        static_cast<const float*>(q.data) + rows_[row.entry].first_row * q.row_stride;
    pieces_.push_back({q_.data() + pieces_.size() * width * sizeof(float),
                       reinterpret_cast<const std::byte*>(from), width * sizeof(float)});
  }
  use_.queries += pieces_.size() * width * sizeof(float);
  if (sinks != nullptr) {
    pieces_.push_back({sinks_.data(), reinterpret_cast<const std::byte*>(sinks), sinks_.bytes()});
  }
  q_ticket_ = store_->transfers()->move_pieces(Lane::kToHost, pieces_);
}

void HostAttention::store_new_tokens(LayerId layer) {
  const KvBook& book = store_->book();
  const KvGeometry geometry = store_->memory().geometry();
  const std::int64_t block_tokens = store_->memory().shape().block_tokens;
  runs_.clear();
  for (const BatchSegment& entry : rows_) {
    const std::int64_t end = entry.first_position + entry.count;
    for (std::int64_t position = entry.first_position; position < end;) {
      const std::int64_t block = position / block_tokens;
      const std::int64_t offset = position % block_tokens;
      const std::int64_t count = std::min(end - position, block_tokens - offset);
      position += count;
      const KvBlock& held = book.table(entry.sequence)[block];
      const std::int32_t mirror = held.mirror();
      if (mirror < 0) continue;
      runs_.push_back({.slot = store_->memory().page(held, layer).value * block_tokens + offset,
                       .record = store_->memory().host_record(mirror, layer, offset),
                       .count = static_cast<std::int32_t>(count),
                       .head_count = static_cast<std::int32_t>(store_->memory().shape().kv_heads)});
      use_.kv += static_cast<std::uint64_t>(geometry.bytes(runs_.back()));
    }
  }
  if (!runs_.empty()) {
    kv_ticket_ = store_->transfers()->move_tokens(Lane::kToHost, geometry, runs_);
  }
}

void HostAttention::attend(LayerId layer, std::int64_t window, ScoreScale scale, Matrix out,
                           Stream& stream) {
  if (!active()) return;
  const auto rows = std::ssize(attended_);
  const std::int64_t width = config_.q_width();
  segments_.clear();
  for (const Row& row : attended_) {
    segments_.push_back({.query_begin = std::ssize(segments_),
                         .query_count = 1,
                         .context_tokens = rows_[row.entry].first_position + 1,
                         .pages = std::span(pages_).subspan(row.first_page, row.pages),
                         .window = window});
  }
  wait(kv_ticket_);
  wait(q_ticket_);
  if (scale.sinks != nullptr) scale.sinks = sinks_.as<float>();
  const ConstMatrix q{.data = q_.data(), .rows = rows, .cols = width, .row_stride = width};
  const Matrix attended{.data = out_.data(), .rows = rows, .cols = width, .row_stride = width};
  ops_->attention(q, config_.heads, view(layer), segments_, scale, attended,
                  {workspace_.data(), workspace_.bytes()}, stream);
  pieces_.clear();
  for (const Row& row : attended_) {
    auto* to = static_cast<float*>(out.data) + rows_[row.entry].first_row * out.row_stride;
    const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
    pieces_.push_back(
        {reinterpret_cast<std::byte*>(to), out_.data() + pieces_.size() * bytes, bytes});
  }
  out_ticket_ = store_->transfers()->move_pieces(Lane::kToDevice, pieces_);
  use_.rows += attended_.size();
  use_.results += attended_.size() * row_bytes(config_);
  store_->transfers()->hold(out_ticket_);
}

void HostAttention::finish() {
  wait(kv_ticket_);
  wait(q_ticket_);
  wait(out_ticket_);
}

}  // namespace triphase
