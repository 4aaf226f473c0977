#include "models/hidden_states.h"

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

// Rows that are projected at once, of `rows` of a call. A device lists up to a whole context of
// tokens, mostly few of them: launches for the others cost as much each as they do.
std::int64_t projected_rows(std::int64_t rows, bool on_device) {
  constexpr std::int64_t kListedRows = 1024;
  return on_device ? std::max(rows, kListedRows) : rows;
}

Sizes sizes_of(const ModelConfig& config, std::int64_t rows, bool on_device) {
  const auto floats = [](std::int64_t count, std::int64_t columns) {
    return static_cast<std::uint64_t>(count * columns) * sizeof(float);
  };
  const std::int64_t projected = projected_rows(rows, on_device);
  return {.codes = kKept * static_cast<std::uint64_t>(rows * config.hidden_size),
          .scales = kKept * floats(rows, 1),
          .inputs = floats(projected, config.hidden_size),
          .kv = floats(projected, 2 * config.kv_width())};
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

HiddenStates::HiddenStates(const ModelConfig& config, std::int64_t tokens, std::int64_t rows,
                           bool on_device, Ops& ops, InputOps& input_ops, const LayerRopes& ropes,
                           MemoryPool& pool)
    : config_(config),
      tokens_(tokens),
      rows_capacity_(rows),
      listed_capacity_(projected_rows(rows, on_device)),
      ops_(&ops),
      input_ops_(&input_ops),
      ropes_(&ropes) {
  TRIPHASE_CHECK(tokens > 0 && rows > 0, "leading tokens with cached hidden states");
  const Sizes sizes = sizes_of(config, rows, on_device);
  codes_ = pool.allocate(sizes.codes, MemoryTag::kActivations);
  scales_ = pool.allocate(sizes.scales, MemoryTag::kActivations);
  inputs_ = pool.allocate(sizes.inputs, MemoryTag::kActivations);
  kv_ = pool.allocate(sizes.kv, MemoryTag::kActivations);
  for (const RopeTable& table : ropes.tables()) {
    rope_rows_.emplace_back(table, rows);
    if (on_device) rope_positions_.emplace_back(table, tokens, pool);
  }
  requantized_.reserve(static_cast<std::size_t>(rows));
  slot_pages_.resize(static_cast<std::size_t>(rows));
  slot_offsets_.resize(static_cast<std::size_t>(rows));
}

HiddenStates::~HiddenStates() {
  for (const Ticket ticket : under_way_) {
    try {
      transfers_->wait(ticket);
    } catch (const std::exception&) {
      // Nobody reads what this should have saved.
    }
  }
}

std::uint64_t HiddenStates::scratch_bytes(const ModelConfig& config, std::int64_t rows,
                                          std::int64_t listed) {
  const Sizes sizes = sizes_of(config, rows, listed > 0);
  return sizes.codes + sizes.scales + sizes.inputs + sizes.kv +
         LayerRopes::angle_bytes(config, listed);
}

void HiddenStates::begin(KvStore& store, std::span<const BatchSegment> rows) {
  if (transfers_ != store.transfers()) {
    for (std::vector<Ticket>& saves : saves_) saves.clear();
    for (const Ticket ticket : under_way_) transfers_->wait(ticket);
    under_way_.clear();
  }
  // Saves under way need no wait: their blocks are still on the device, and the link offloads
  // blocks only after these saves. One that failed says so.
  std::erase_if(under_way_, [this](Ticket ticket) {
    if (!transfers_->done(ticket)) return false;
    transfers_->wait(ticket);
    return true;
  });
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

void HiddenStates::project(LayerId layer, const LayerWeights& weights, ConstMatrix input, Matrix kv,
                           Stream& stream) {
  if (runs_.empty()) return;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t kept = layer.value % kKept;
  std::vector<Ticket>& saves = saves_[kept];
  for (const Ticket ticket : saves) transfers_->hold(ticket);
  saves.clear();
  const std::int64_t first = kept * rows_capacity_;
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
  if (store_->memory().sizes().input_blocks == 0) return;
  if (!store_->memory().shape().sets.on_host(layer)) return;
  save(layer, codes, scales, saves);
}

void HiddenStates::save(LayerId layer, const std::int8_t* codes, const float* scales,
                        std::vector<Ticket>& saves) {
  const std::int64_t block_tokens = store_->memory().shape().block_tokens;
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
      const std::int32_t home = store_->book().table(entry.sequence)[block].input_block;
      const std::int64_t row = entry.first_row + position - entry.first_position;
      position += count;
      if (home < 0) continue;
      store_->written().note_input_block(home);
      std::byte* to = store_->memory().saved_inputs(home, layer);
      send(to + offset * hidden, codes + row * hidden, count * hidden);
      constexpr std::int64_t kScale = sizeof(float);
      send(to + block_tokens * hidden + offset * kScale, scales + row, count * kScale);
    }
  }
  if (pieces_.empty()) return;
  saves.push_back(transfers_->move_pieces(Lane::kToHost, pieces_));
  under_way_.push_back(saves.back());
}

void HiddenStates::recompute(LayerId layer, const LayerWeights& weights,
                             std::span<const KvRecompute> blocks, const KvLayerView& cache,
                             Stream& stream) {
  const auto at_once = static_cast<std::size_t>(rows_capacity_ / cache.page_tokens);
  TRIPHASE_CHECK(at_once > 0, "buffers for the rows of a block");
  while (!blocks.empty()) {
    const std::size_t count = std::min(blocks.size(), at_once);
    recompute_part(layer, weights, blocks.first(count), cache, stream);
    blocks = blocks.subspan(count);
  }
}

void HiddenStates::recompute_part(LayerId layer, const LayerWeights& weights,
                                  std::span<const KvRecompute> blocks, const KvLayerView& cache,
                                  Stream& stream) {
  const std::optional<std::size_t> rope = ropes_->of(layer.value);
  const std::int64_t block_tokens = cache.page_tokens;
  const std::int64_t rows = std::ssize(blocks) * block_tokens;
  const std::int64_t width = config_.kv_width();
  std::int64_t row = 0;
  for (const KvRecompute& block : blocks) {
    read_inputs(block, row, cache, stream);
    for (std::int64_t i = 0; i < block_tokens; ++i, ++row) {
      if (rope) rope_rows_[*rope].set(row, block.rope_key, block.first_position + i);
    }
  }
  const Matrix kv = rows_of(kv_, rows, 2 * width);
  ops_->linear_by_rows(rows_of(inputs_, rows, config_.hidden_size), kv_projection(weights, config_),
                       kv_projection_bias(weights, config_), {}, kv, stream);
  const Matrix k = part_of(kv, 0, rows, 0, width);
  norm_of_heads(config_, weights.key_norm, config_.kv_heads, k, *ops_, stream);
  if (rope) {
    ops_->rope(k, config_.kv_heads, config_.head_dim, ropes_->tables()[*rope].rotary_dim(),
               rope_rows_[*rope].send(rows, *ops_, stream), stream);
  }
  const Matrix v = part_of(kv, 0, rows, width, width);
  if (cache.quantized()) {
    requantize(blocks, k, v, cache, stream);
  } else {
    for (std::size_t index = 0; index < blocks.size(); ++index) {
      name_slots(blocks[index].page, static_cast<std::int64_t>(index) * block_tokens, block_tokens);
    }
    append(k, v, cache, stream);
  }
  use_.recomputed_tokens += static_cast<std::uint64_t>(rows);
}

void HiddenStates::recompute(LayerId layer, const LayerWeights& weights,
                             const RecomputedTokens& tokens, const KvLayerView& cache,
                             Stream& stream) {
  const std::int64_t width = config_.kv_width();
  const std::optional<std::size_t> rope = ropes_->of(layer.value);
  const ConstMatrix angles = rope ? rope_positions_[*rope].send(stream) : ConstMatrix{};
  for (std::int64_t first = 0; first < tokens.most; first += listed_capacity_) {
    const std::int64_t rows = std::min(listed_capacity_, tokens.most - first);
    const Matrix inputs = rows_of(inputs_, rows, config_.hidden_size);
    const Matrix kv = rows_of(kv_, rows, 2 * width);
    input_ops_->restore(tokens, first, cache, inputs, stream);
    ops_->linear_by_rows(inputs, kv_projection(weights, config_),
                         kv_projection_bias(weights, config_), {tokens.count, first}, kv, stream);
    const Matrix k = part_of(kv, 0, rows, 0, width);
    norm_of_heads(config_, weights.key_norm, config_.kv_heads, k, *ops_, stream);
    input_ops_->store(tokens, first, k, part_of(kv, 0, rows, width, width), angles, cache, stream);
  }
}

void HiddenStates::read_inputs(const KvRecompute& block, std::int64_t row, const KvLayerView& cache,
                               Stream& stream) {
  const std::int64_t page = block.page.value * cache.page_tokens * config_.kv_width() *
                            static_cast<std::int64_t>(dtype_bytes(cache.dtype));
  const auto* codes =
      reinterpret_cast<const std::int8_t*>(static_cast<const std::byte*>(cache.k) + page);
  const auto* scales =
      reinterpret_cast<const float*>(static_cast<const std::byte*>(cache.v) + page);
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t end = row + cache.page_tokens;
  input_ops_->dequantize(codes, scales,
                         part_of(rows_of(inputs_, end, hidden), row, cache.page_tokens, 0, hidden),
                         stream);
}

void HiddenStates::name_slots(PageId page, std::int64_t row, std::int64_t page_tokens) {
  for (std::int64_t offset = 0; offset < page_tokens; ++offset) {
    slot_pages_[row + offset] = page;
    slot_offsets_[row + offset] = static_cast<std::int32_t>(offset);
  }
}

void HiddenStates::append(ConstMatrix k, ConstMatrix v, const KvLayerView& cache, Stream& stream) {
  const auto rows = static_cast<std::size_t>(k.rows);
  ops_->kv_append(k, v, {std::span(slot_pages_).first(rows), std::span(slot_offsets_).first(rows)},
                  cache, stream);
}

// Works block by block through a free partial page. Each block keeps the scales that it got when it
// filled up.
void HiddenStates::requantize(std::span<const KvRecompute> blocks, Matrix k, Matrix v,
                              const KvLayerView& cache, Stream& stream) {
  const std::int64_t tokens = cache.page_tokens;
  const PageId partial = store_->partial_pages().take();
  name_slots(partial, 0, tokens);
  std::int64_t row = 0;
  for (const KvRecompute& block : blocks) {
    append(part_of(k, row, tokens, 0, k.cols), part_of(v, row, tokens, 0, v.cols), cache, stream);
    requantized_.clear();
    const auto first_slot = static_cast<std::int32_t>(block.page.value * tokens);
    for (std::int32_t offset = 0; offset < tokens; ++offset) {
      requantized_.push_back({partial, offset, first_slot + offset, block.scale_page});
    }
    input_ops_->kv_requantize(requantized_, cache, stream);
    row += tokens;
  }
  store_->partial_pages().give_back(partial);
}

}  // namespace triphase
