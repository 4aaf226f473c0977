#include "runtime/profile/model_work.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/kv_projection.h"
#include "runtime/fill_memory.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/memory_plan.h"

namespace triphase {
namespace {

std::int64_t count(double value) { return std::llround(value); }

Matrix rows_of(const Buffer& buffer, std::int64_t rows, std::int64_t cols) {
  return {buffer.data(), DType::kF32, rows, cols, cols};
}

constexpr std::size_t kPartBytes = std::size_t{4} << 20;
// V of so many rows stands for that of all.
constexpr std::int64_t kValueRows = 1024;

// Steps of about a hundredth, so that codes make different keys.
void fill_scales(Backend& backend, KvScale* data, std::size_t bytes) {
  const std::vector<KvScale> scales(kPartBytes / sizeof(KvScale), kv_scale(0.0115F, 0.0F));
  fill_repeating(backend, reinterpret_cast<std::byte*>(data), bytes,
                 std::as_bytes(std::span(scales)));
}

}  // namespace

void fill_ordinary(Backend& backend, std::byte* data, std::size_t bytes) {
  fill_repeating(backend, data, bytes, std::vector(std::min(bytes, kPartBytes), kOrdinary));
}

BatchLimits method_limits(const ModelRigLimits& limits) {
  return {.rows = limits.batch,
          .segments = limits.batch,
          .logit_rows = limits.batch,
          .context = limits.context,
          .sparse = true};
}

namespace {

std::int64_t layer_like(const ModelConfig& config, std::int64_t layer, std::int64_t layers) {
  std::int64_t like = layer % layers;
  while (config.has_experts(like) != config.has_experts(layer)) like = (like + 1) % layers;
  return like;
}

std::unique_ptr<ModelWeights> load_layers(const RunOptions& options, std::int64_t layers,
                                          const WeightHomes& homes, const Workplace& place) {
  const ModelBundle& model = place.model;
  ModelConfig config = model.config;
  config.layers = layers;
  // Whoever computes with the weights warns of what is wrong with them. Here tensors of further
  // layers would be unknown ones.
  Log errors(place.log, -2);
  auto weights = load_model_weights(model, config, options, homes, place.progress,
                                    layers < model.config.layers ? errors : place.log);
  weights->layers.reserve(static_cast<std::size_t>(model.config.layers));
  for (std::int64_t layer = layers; layer < model.config.layers; ++layer) {
    const std::int64_t like = layer_like(model.config, layer, layers);
    weights->layers.push_back(weights->layers[like]);
    weights->host_layers.push_back(weights->host_layers[like]);
  }
  return weights;
}

ModelConfig without_windows(ModelConfig config) {
  config.sliding_window.clear();
  config.window_rope.reset();
  return config;
}

}  // namespace

std::int64_t fewest_layers(const ModelConfig& config) {
  const auto has = [&](std::int64_t layers, bool experts) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (config.has_experts(layer) == experts) return true;
    }
    return false;
  };
  std::int64_t layers = 1;
  for (const bool experts : {false, true}) {
    while (has(config.layers, experts) && !has(layers, experts)) ++layers;
  }
  return layers;
}

ModelRig::ModelRig(const RunOptions& options, const ModelRigLimits& limits, const Workplace& place)
    : limits_(limits),
      config_(without_windows(place.model.config)),
      backend_(place.backend),
      compute_dtype_(kv_dtype_on(place.machine(), std::nullopt, place.model.weights_dtype)),
      pool_(backend_.device(), MemoryTier::kDevice, UINT64_MAX),
      weight_memory_(pool_, MemoryTag::kWeights),
      weights_(
          load_layers(options, limits.layers, {weight_memory_, backend_.random_fill()}, place)),
      decoder_(config_, *weights_, backend_.ops(), backend_.threads().threads(),
               {.rows = limits.rows,
                .segments = std::max(limits.batch, limits.rows),
                .logit_rows = limits.batch,
                .context = limits.context},
               pool_),
      method_memory_(pool_, MemoryTag::kSelection),
      tokens_(static_cast<std::size_t>(limits.rows)),
      sampler_(backend_, config_.vocab_size) {
  // Rows of the embedding far apart, as real text has them.
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    tokens_[i] = static_cast<TokenId>(i * 7919 % static_cast<std::size_t>(config_.vocab_size));
  }
}

void ModelRig::use_method(const AttentionOptions& attention) {
  drop_kv();
  sparse_.reset();
  attention_ = attention;
  if (!attention.sparse()) return;
  method_ = make_attention_method(attention, method_shape(config()));
  sparse_.emplace(config(), *weights_, backend_.ops(), backend_.threads().threads(),
                  method_limits(limits_), pool_);
  sparse_->attention().set_method(attention, backend_.sparse_ops(), pool_);
  if (!method_->needs_every_row()) return;
  const auto bytes = static_cast<std::size_t>(kValueRows * config().kv_width()) * sizeof(float);
  values_ = pool_.allocate(bytes, MemoryTag::kWorkspace);
  fill_ordinary(backend_, values_.data(), bytes);
}

KvShape rig_kv_shape(const ModelConfig& config, const AttentionOptions& attention, DType dtype,
                     DType partial_dtype) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .block_tokens = default_block_tokens(dtype),
          .dtype = dtype,
          .partial_dtype = partial_dtype,
          .transposed_k = keeps_transposed_k(attention)};
}

KvSizes rig_kv_sizes(const KvShape& shape, const ModelRigLimits& limits) {
  // Every sequence may leave its last block almost empty; prompts are at least half a context.
  const std::int64_t prompts = 2 * limits.rows / limits.context + 1;
  const std::int64_t blocks = limits.tokens / shape.block_tokens + limits.batch + prompts + 1;
  return {.device_pages = blocks * shape.layers,
          .partial_pages = partial_pages_needed(shape.dtype, shape.layers, shape.block_tokens,
                                                limits.batch, limits.rows),
          .transposed_k_blocks = shape.transposed_k ? blocks : 0};
}

void ModelRig::use_kv(DType dtype) {
  kv_.reset();
  const KvShape shape = rig_kv_shape(config(), attention_, dtype, compute_dtype_);
  KvSizes sizes = rig_kv_sizes(shape, limits_);
  sizes.transposed_k_run_bytes = backend_.sparse_ops().transposed_k_run_bytes();
  kv_.emplace(shape, sizes, pool_, nullptr, nullptr);
  fill_kv();
}

void ModelRig::fill_kv() {
  const KvMemory& memory = kv_->memory();
  const KvShape& shape = memory.shape();
  const auto fill = [&](std::byte* data, std::size_t bytes, DType dtype) {
    // Keys that differ, since choosing among equal ones may take another time.
    if (chooses()) return fill_random(backend_, data, bytes, dtype, 1);
    fill_ordinary(backend_, data, bytes);
  };
  const std::size_t half = shape.page_bytes() / 2;
  const auto pages = static_cast<std::size_t>(memory.sizes().device_pages);
  fill(memory.k_pages(), half * pages, shape.dtype);
  fill(memory.v_pages(), half * pages, shape.dtype);
  if (!shape.quantized()) return;
  const std::size_t open = shape.partial_page_bytes() / 2;
  const auto partial_pages = static_cast<std::size_t>(memory.sizes().partial_pages);
  fill(memory.partial_k_pages(), open * partial_pages, shape.partial_dtype);
  fill(memory.partial_v_pages(), open * partial_pages, shape.partial_dtype);
  const auto scales = static_cast<std::size_t>(kv_->book().pool().capacity());
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    fill_scales(backend_, memory.scales(LayerId(layer)), shape.scale_bytes() * scales);
  }
}

SequenceId ModelRig::start_sequence(std::int64_t tokens, std::int64_t growth) {
  KvBook& book = kv_->book();
  const TokenId any = 0;
  const KvBook::Admission admission = book.admit({&any, 1}, tokens + growth, 0);
  TRIPHASE_CHECK(admission.sequence.valid(), "a cache that was made for this sequence");
  book.append(admission.sequence, tokens);
  sequences_.push_back(admission.sequence);
  return admission.sequence;
}

void ModelRig::start_prompt(SequenceId sequence, std::int64_t tokens, std::int64_t growth) {
  std::unique_ptr<AttentionMethod::State> state = method_->begin(tokens, tokens + growth);
  for (std::int64_t done = 0; done < tokens - 1 && method_->needs_every_row(); done += kValueRows) {
    append_values(*state, std::min(kValueRows, tokens - 1 - done));
  }
  sparse_->attention().runner()->begin(sequence, tokens, std::move(state));
}

void ModelRig::append_values(AttentionMethod::State& state, std::int64_t rows) {
  AttentionMethod::State* const one = &state;
  AttentionSegment segment;
  segment.query_count = rows;
  const std::int64_t width = config().kv_width();
  for (std::int64_t layer = 0; layer < method_->shape().layers; ++layer) {
    method_->appended({{&one, 1}, {&segment, 1}},
                      {.layer = layer,
                       .ops = &backend_.sparse_ops(),
                       .memory = &method_memory_,
                       .stream = &backend_.stream()},
                      {values_.data(), DType::kF32, rows, width, width});
  }
}

void ModelRig::end_sequences() {
  for (const SequenceId sequence : sequences_) {
    if (chooses()) sparse_->attention().end_sequence(sequence);
    kv_->release(sequence);
  }
  sequences_.clear();
}

void ModelRig::step(std::span<const BatchSegment> segments,
                    std::span<const std::int32_t> logit_rows, bool sample) {
  const BatchSegment& last = segments.back();
  const auto rows = static_cast<std::size_t>(last.first_row + last.count);
  sample_rows_.assign(sample ? logit_rows.size() : 0, {.vocab = decoder_.config().vocab_size});
  DecoderModel& decoder = sparse_ ? *sparse_ : decoder_;
  const ConstMatrix logits =
      decoder.forward({std::span(tokens_).first(rows), segments, logit_rows, sample_rows_}, *kv_,
                      backend_.stream());
  if (!sample) {
    backend_.stream().synchronize();
    return;
  }
  sampler_.wait(sampler_.sample(logits, sample_rows_));
}

std::int64_t DecodeWork::context(double x, double y) const {
  const std::int64_t batch = count(x);
  std::int64_t tokens = std::max<std::int64_t>((count(y) + batch - 1) / batch, 1);
  if (!rig_.kv().memory().shape().quantized()) return tokens;
  // The same position is computed again and again: it must neither begin nor close a block.
  const std::int64_t block = rig_.kv().memory().shape().block_tokens;
  if (tokens % block == 0) return tokens - 1;
  return tokens % block == 1 ? tokens + 1 : tokens;
}

bool DecodeWork::possible(double x, double y) const {
  return context(x, y) + growth_ <= rig_.limits().context;
}

void DecodeWork::begin(double x, double y) { start(count(x), context(x, y)); }

void DecodeWork::before_run() {
  if (growth_ == 0) return;
  if (grown_ == growth_) {
    end();
    start(std::ssize(segments_), start_tokens_);
  }
  for (BatchSegment& segment : segments_) {
    rig_.kv().book().append(segment.sequence, 1);
    ++segment.first_position;
  }
  ++grown_;
}

void DecodeWork::start(std::int64_t batch, std::int64_t tokens) {
  start_tokens_ = tokens;
  grown_ = 0;
  segments_.clear();
  logit_rows_.clear();
  for (std::int64_t i = 0; i < batch; ++i) {
    const SequenceId sequence = rig_.start_sequence(tokens, growth_);
    segments_.push_back(
        {.sequence = sequence, .first_row = i, .count = 1, .first_position = tokens - 1});
    logit_rows_.push_back(static_cast<std::int32_t>(i));
    if (!rig_.kv().memory().shape().quantized()) continue;
    PartialPages& open = rig_.kv().partial_pages();
    for (std::int64_t layer = 0; layer < rig_.config().layers; ++layer) {
      open.current(sequence, LayerId(layer)) = open.take();
    }
  }
  if (growth_ == 0) return;
  for (const BatchSegment& segment : segments_) {
    rig_.start_prompt(segment.sequence, tokens, growth_);
  }
  run();
  // What a method does once for all of a prompt comes with the first decoded row.
  before_run();
  run();
}

void PrefillWork::begin(double x, double y) {
  const std::int64_t before = count(y);
  const std::int64_t longest = rig_.limits().context - before;
  TRIPHASE_CHECK(2 * before <= rig_.limits().context, "a context with room behind it");
  segments_.clear();
  logit_rows_.clear();
  for (std::int64_t row = 0; row < count(x);) {
    const std::int64_t rows = std::min(longest, count(x) - row);
    segments_.push_back({.sequence = rig_.start_sequence(before + rows),
                         .first_row = row,
                         .count = rows,
                         .first_position = before});
    row += rows;
    if (std::ssize(logit_rows_) < rig_.limits().batch) {
      logit_rows_.push_back(static_cast<std::int32_t>(row - 1));
    }
  }
}

RecomputeWork::RecomputeWork(ModelRig& rig) : rig_(rig) {
  const ModelConfig& config = rig.config();
  const std::int64_t rows = rig.limits().rows;
  if (config.rope) {
    rope_.emplace(*config.rope, config.max_positions);
    rope_rows_.emplace(*rope_, rows);
  }
  const auto take = [&](std::int64_t columns) {
    const auto elements = static_cast<std::size_t>(rows * columns);
    Buffer buffer = rig.pool().allocate(elements * sizeof(float), MemoryTag::kWorkspace);
    fill_ordinary(rig.backend(), buffer.data(), elements * sizeof(float));
    return buffer;
  };
  input_ = take(config.hidden_size);
  scales_ = take(1);
  const auto codes = static_cast<std::size_t>(rows * config.hidden_size);
  codes_ = rig.pool().allocate(codes, MemoryTag::kWorkspace);
  fill_ordinary(rig.backend(), codes_.data(), codes);
  kv_ = take(2 * config.kv_width());
}

void RecomputeWork::begin(double x, double y) {
  rows_ = count(x) * count(y);
  const std::int64_t block = rig_.kv().memory().shape().block_tokens;
  const std::int64_t most = std::min(rows_, rig_.limits().rows);
  pages_.clear();
  offsets_.clear();
  for (std::int64_t row = 0; row < most; ++row) {
    pages_.emplace_back(row / block);
    offsets_.push_back(static_cast<std::int32_t>(row % block));
  }
}

void RecomputeWork::run() {
  for (std::int64_t done = 0; done < rows_; done += rig_.limits().rows) {
    project(std::min(rig_.limits().rows, rows_ - done));
  }
  rig_.backend().stream().synchronize();
}

void RecomputeWork::project(std::int64_t rows) {
  const ModelConfig& config = rig_.config();
  Ops& ops = rig_.backend().ops();
  Stream& stream = rig_.backend().stream();
  const Matrix input = rows_of(input_, rows, config.hidden_size);
  const Matrix kv = rows_of(kv_, rows, 2 * config.kv_width());
  const Matrix k{kv.data, DType::kF32, rows, config.kv_width(), kv.row_stride};
  const Matrix v{static_cast<float*>(kv.data) + config.kv_width(), DType::kF32, rows,
                 config.kv_width(), kv.row_stride};
  const std::size_t used = static_cast<std::size_t>(rows);
  const KvSlots slots{std::span(pages_).first(used), std::span(offsets_).first(used)};
  const KvLayerView cache = rig_.kv().memory().view(LayerId(0));
  for (std::int64_t row = 0; rope_rows_ && row < rows; ++row) rope_rows_->set(row, 0, row);
  for (const LayerWeights& w : rig_.weights().layers) {
    // X was saved after the norm.
    rig_.backend().input_ops().dequantize(codes_.as<std::int8_t>(), scales_.as<float>(), input,
                                          stream);
    ops.linear(input, kv_projection(w, config), kv_projection_bias(w, config), false, kv, stream);
    if (rope_) {
      ops.rope(k, config.kv_heads, config.head_dim, rope_->rotary_dim(),
               rope_rows_->send(rows, ops, stream), stream);
    }
    ops.kv_append(k, v, slots, cache, stream);
  }
}

void QuantizeWork::begin(double x, double /*y*/) {
  const KvStore& kv = rig_.kv();
  const std::int64_t blocks = count(x) / kv.memory().shape().block_tokens;
  full_blocks_.assign(static_cast<std::size_t>(kv.memory().shape().layers), {});
  std::int64_t next = 0;
  for (std::vector<FullBlock>& layer : full_blocks_) {
    for (std::int64_t block = 0; block < blocks; ++block, ++next) {
      layer.push_back({.partial_page = PageId(next % kv.memory().sizes().partial_pages),
                       .page = PageId(next % kv.memory().sizes().device_pages),
                       .scale_page = PageId(block % kv.book().pool().capacity())});
    }
  }
}

void QuantizeWork::run() {
  const KvMemory& memory = rig_.kv().memory();
  for (std::int64_t layer = 0; layer < memory.shape().layers; ++layer) {
    rig_.backend().ops().quantize_blocks({full_blocks_[layer]}, memory.view(LayerId(layer)),
                                         rig_.backend().stream());
  }
  rig_.backend().stream().synchronize();
}

}  // namespace triphase
