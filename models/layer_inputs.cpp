#include "models/layer_inputs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "models/kv_projection.h"

namespace triphase {
namespace {

constexpr std::int64_t kKept = 2;  // layers whose X is held

struct Sizes {
  std::uint64_t codes, scales, inputs, kv;  // bytes
};

Sizes sizes_of(const ModelConfig& config, std::int64_t rows) {
  const auto count = static_cast<std::uint64_t>(rows);
  const auto floats = [&](std::int64_t columns) {
    return count * static_cast<std::uint64_t>(columns) * sizeof(float);
  };
  return {.codes = kKept * count * static_cast<std::uint64_t>(config.hidden_size),
          .scales = kKept * floats(1),
          .inputs = floats(config.hidden_size),
          .kv = floats(2 * config.kv_width())};
}

Matrix rows_of(const Buffer& buffer, std::int64_t rows, std::int64_t cols) {
  return {buffer.data(), DType::kF32, rows, cols, cols};
}

template <class AnyMatrix>
AnyMatrix part_of(AnyMatrix all, std::int64_t first_row, std::int64_t rows,
                  std::int64_t first_column, std::int64_t columns) {
  using Float = std::conditional_t<std::is_same_v<AnyMatrix, Matrix>, float, const float>;
  all.data = static_cast<Float*>(all.data) + first_row * all.row_stride + first_column;
  all.rows = rows;
  all.cols = columns;
  return all;
}

}  // namespace

LayerInputs::LayerInputs(const ModelConfig& config, std::int64_t tokens, std::int64_t rows,
                         bool on_device, Ops& ops, InputOps& input_ops, const RopeTable* rope,
                         MemoryPool& pool)
    : config_(config),
      tokens_(tokens),
      rows_capacity_(rows),
      ops_(&ops),
      input_ops_(&input_ops),
      rope_(rope) {
  TRIPHASE_CHECK(tokens > 0 && rows > 0, "leading tokens with layer inputs");
  const Sizes sizes = sizes_of(config, rows);
  codes_ = pool.allocate(sizes.codes, MemoryTag::kActivations);
  scales_ = pool.allocate(sizes.scales, MemoryTag::kActivations);
  inputs_ = pool.allocate(sizes.inputs, MemoryTag::kActivations);
  kv_ = pool.allocate(sizes.kv, MemoryTag::kActivations);
  if (rope != nullptr) rope_rows_.emplace(*rope, rows);
  if (rope != nullptr && on_device) rope_positions_.emplace(*rope, tokens, pool);
  requantized_.reserve(static_cast<std::size_t>(rows));
  slot_pages_.resize(static_cast<std::size_t>(rows));
  slot_offsets_.resize(static_cast<std::size_t>(rows));
}

LayerInputs::~LayerInputs() {
  for (const std::vector<Ticket>& saves : {under_way_, before_}) {
    for (const Ticket ticket : saves) {
      try {
        transfers_->wait(ticket);
      } catch (const std::exception&) {
        // Nobody reads what this should have saved.
      }
    }
  }
}

std::uint64_t LayerInputs::scratch_bytes(const ModelConfig& config, std::int64_t rows,
                                         std::int64_t listed) {
  const Sizes sizes = sizes_of(config, rows);
  return sizes.codes + sizes.scales + sizes.inputs + sizes.kv +
         (config.rope ? RopePositions::bytes(config.rope->rotary_dim, listed) : 0);
}

void LayerInputs::begin(KvStore& store, std::span<const BatchSegment> rows) {
  if (transfers_ != store.transfers()) {
    for (std::vector<Ticket>& saves : saves_) saves.clear();
    wait_for(under_way_);
  }
  // Nothing reads those of the last step yet: their blocks are on the device, and what makes them
  // leave follows these saves on the link.
  wait_for(before_);
  std::swap(before_, under_way_);
  store_ = &store;
  transfers_ = store.transfers();
  rows_ = rows;
  runs_.clear();
  for (const BatchSegment& entry : rows) {
    const std::int64_t count =
        std::clamp<std::int64_t>(tokens_ - entry.first_position, 0, entry.count);
    if (count == 0) continue;
    if (!runs_.empty() && runs_.back().first + runs_.back().count == entry.first_row) {
      runs_.back().count += count;
    } else {
      runs_.push_back({entry.first_row, count});
    }
  }
}

void LayerInputs::wait_for(std::vector<Ticket>& saves) {
  while (!saves.empty()) {
    const Ticket ticket = saves.back();
    saves.pop_back();
    transfers_->wait(ticket);
  }
}

void LayerInputs::project(LayerId layer, const LayerWeights& weights, ConstMatrix input, Matrix kv,
                          Stream& stream) {
  if (runs_.empty()) return;
  const std::int64_t hidden = config_.hidden_size;
  const auto kept = static_cast<std::size_t>(layer.value % kKept);
  std::vector<Ticket>& saves = saves_[kept];
  for (const Ticket ticket : saves) transfers_->hold(ticket);
  saves.clear();
  const std::int64_t first = static_cast<std::int64_t>(kept) * rows_capacity_;
  auto* codes = codes_.as<std::int8_t>() + first * hidden;
  float* scales = scales_.as<float>() + first;
  for (const RowRun& run : runs_) {
    const Matrix restored = rows_of(inputs_, run.count, hidden);
    input_ops_->quantize(part_of(input, run.first, run.count, 0, hidden),
                         codes + run.first * hidden, scales + run.first, stream);
    input_ops_->dequantize(codes + run.first * hidden, scales + run.first, restored, stream);
    ops_->linear_by_rows(restored, kv_projection(weights, config_),
                         kv_projection_bias(weights, config_), {},
                         part_of(kv, run.first, run.count, 0, kv.cols), stream);
  }
  if (store_->sizes().input_blocks == 0) return;
  save(layer, codes, scales, saves);
}

void LayerInputs::save(LayerId layer, const std::int8_t* codes, const float* scales,
                       std::vector<Ticket>& saves) {
  const std::int64_t block_tokens = store_->shape().block_tokens;
  const std::int64_t hidden = config_.hidden_size;
  pieces_.clear();
  const auto send = [&](std::byte* to, const void* from, std::int64_t bytes) {
    pieces_.push_back({to, static_cast<const std::byte*>(from), static_cast<std::size_t>(bytes)});
    use_.saved_bytes += static_cast<std::uint64_t>(bytes);
  };
  for (const BatchSegment& entry : rows_) {
    const std::int64_t end = std::min(entry.first_position + entry.count, tokens_);
    for (std::int64_t position = entry.first_position; position < end;) {
      const std::int64_t block = position / block_tokens;
      const std::int64_t offset = position % block_tokens;
      const std::int64_t count = std::min(end - position, block_tokens - offset);
      const std::int32_t home = store_->book().block(entry.sequence, block).input_block;
      const std::int64_t row = entry.first_row + position - entry.first_position;
      position += count;
      if (home < 0) continue;
      store_->note_written_inputs(home);
      std::byte* to = store_->saved_inputs(home, layer);
      send(to + offset * hidden, codes + row * hidden, count * hidden);
      constexpr std::int64_t kScale = sizeof(float);
      send(to + block_tokens * hidden + offset * kScale, scales + row, count * kScale);
    }
  }
  if (pieces_.empty()) return;
  saves.push_back(transfers_->move_pieces(Lane::kToHost, pieces_));
  under_way_.push_back(saves.back());
}

void LayerInputs::recompute(const LayerWeights& weights, const KvRecomputes& recomputes,
                            const KvLayerView& cache, Stream& stream) {
  std::span<const KvRecompute> blocks = recomputes.blocks;
  std::span<const KvRecomputeToken> tokens = recomputes.tokens;
  while (!blocks.empty()) {
    // Whole blocks: K and V take the place of the layer inputs that they come from.
    std::size_t count = 0;
    std::int64_t rows = 0;
    while (count < blocks.size() && rows + blocks[count].token_count <= rows_capacity_) {
      rows += blocks[count++].token_count;
    }
    TRIPHASE_CHECK(count > 0, "buffers for the rows of a block");
    const auto part = static_cast<std::size_t>(rows);
    if (rows > 0) {
      recompute_part(weights, blocks.first(count), tokens.first(part), cache, stream);
    }
    blocks = blocks.subspan(count);
    tokens = tokens.subspan(part);
  }
}

void LayerInputs::recompute_part(const LayerWeights& weights, std::span<const KvRecompute> blocks,
                                 std::span<const KvRecomputeToken> tokens, const KvLayerView& cache,
                                 Stream& stream) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t width = config_.kv_width();
  std::int64_t row = 0;
  for (const KvRecompute& block : blocks) {
    const auto own =
        tokens.subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(block.token_count));
    read_inputs(block, own, row, cache, stream);
    for (const KvRecomputeToken& token : own) {
      if (rope_rows_) rope_rows_->set(row, block.rope_key, block.first_position + token.offset);
      ++row;
    }
  }
  const Matrix inputs = rows_of(inputs_, rows, config_.hidden_size);
  const Matrix kv = rows_of(kv_, rows, 2 * width);
  ops_->linear_by_rows(inputs, kv_projection(weights, config_),
                       kv_projection_bias(weights, config_), {}, kv, stream);
  const Matrix k = part_of(kv, 0, rows, 0, width);
  const Matrix v = part_of(kv, 0, rows, width, width);
  if (rope_ != nullptr) {
    ops_->rope(k, config_.kv_heads, config_.head_dim, rope_->rotary_dim(),
               rope_rows_->send(rows, *ops_, stream), stream);
  }
  put_into_slots(blocks, tokens, k, v, cache, stream);
  use_.recomputed_tokens += static_cast<std::uint64_t>(rows);
}

void LayerInputs::recompute(const LayerWeights& weights, const RecomputedTokens& tokens,
                            const KvLayerView& cache, Stream& stream) {
  const std::int64_t width = config_.kv_width();
  const ConstMatrix angles = rope_positions_ ? rope_positions_->send(stream) : ConstMatrix{};
  for (std::int64_t first = 0; first < tokens.most; first += rows_capacity_) {
    const std::int64_t rows = std::min(rows_capacity_, tokens.most - first);
    const Matrix inputs = rows_of(inputs_, rows, config_.hidden_size);
    const Matrix kv = rows_of(kv_, rows, 2 * width);
    input_ops_->restore(tokens, first, cache, inputs, stream);
    ops_->linear_by_rows(inputs, kv_projection(weights, config_),
                         kv_projection_bias(weights, config_), {tokens.count, first}, kv, stream);
    input_ops_->store(tokens, first, part_of(kv, 0, rows, 0, width),
                      part_of(kv, 0, rows, width, width), angles, cache, stream);
  }
}

void LayerInputs::read_inputs(const KvRecompute& block, std::span<const KvRecomputeToken> tokens,
                              std::int64_t row, const KvLayerView& cache, Stream& stream) {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t page = block.page.value * cache.page_tokens * config_.kv_width() *
                            static_cast<std::int64_t>(dtype_bytes(cache.dtype));
  const auto* codes =
      reinterpret_cast<const std::int8_t*>(static_cast<const std::byte*>(cache.k) + page);
  const auto* scales =
      reinterpret_cast<const float*>(static_cast<const std::byte*>(cache.v) + page);
  while (!tokens.empty()) {
    // Neighbours in one call.
    const std::int64_t first = tokens.front().offset;
    std::size_t count = 1;
    while (count < tokens.size() &&
           tokens[count].offset == first + static_cast<std::int64_t>(count)) {
      ++count;
    }
    const auto rows = static_cast<std::int64_t>(count);
    const Matrix to = part_of(rows_of(inputs_, row + rows, hidden), row, rows, 0, hidden);
    input_ops_->dequantize(codes + first * hidden, scales + first, to, stream);
    row += rows;
    tokens = tokens.subspan(count);
  }
}

void LayerInputs::put_into_slots(std::span<const KvRecompute> blocks,
                                 std::span<const KvRecomputeToken> tokens, ConstMatrix k,
                                 ConstMatrix v, const KvLayerView& cache, Stream& stream) {
  const bool quantized = cache.quantized();
  // INT8 tokens pass through a partial page, a page at a time, and are quantized by the scales that
  // their blocks got when they were closed.
  const PageId open = quantized ? store_->partial_pages().take() : PageId();
  requantized_.clear();
  std::size_t row = 0;
  for (const KvRecompute& block : blocks) {
    for (std::int32_t i = 0; i < block.token_count; ++i, ++row) {
      const std::int32_t slot = tokens[row].slot;
      const std::int64_t place = quantized ? static_cast<std::int64_t>(row) : slot;
      slot_pages_[row] =
          quantized ? open : PageId(static_cast<std::int32_t>(place / cache.page_tokens));
      slot_offsets_[row] = static_cast<std::int32_t>(place % cache.page_tokens);
      if (quantized) requantized_.push_back({open, slot_offsets_[row], slot, block.scale_page});
    }
  }
  const std::int64_t step = quantized ? cache.page_tokens : k.rows;
  for (std::int64_t begin = 0; begin < k.rows; begin += step) {
    const std::int64_t rows = std::min(step, k.rows - begin);
    const auto first = static_cast<std::size_t>(begin);
    const auto count = static_cast<std::size_t>(rows);
    ops_->kv_append(part_of(k, begin, rows, 0, k.cols), part_of(v, begin, rows, 0, v.cols),
                    {std::span(slot_pages_).subspan(first, count),
                     std::span(slot_offsets_).subspan(first, count)},
                    cache, stream);
    if (!quantized) continue;
    input_ops_->kv_requantize(std::span(requantized_).subspan(first, count), cache, stream);
  }
  if (open.valid()) store_->partial_pages().give_back(open);
}

}  // namespace triphase
