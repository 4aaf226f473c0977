#include "models/decoder_model.h"

#include "base/error.h"
#include "kernels/sizing/expert_workspace.h"
#include "models/kv_projection.h"

namespace triphase {
namespace {

// The buffers of one forward call in elements of F32: the constructor allocates this list and
// scratch_bytes() adds it up, so that plan and run cannot disagree.
struct ScratchSizes {
  std::int64_t x, normed, embedded, qkv, attended, up, experts, selected, projected, logits;

  [[nodiscard]] std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(x + normed + embedded + qkv + attended + up + experts +
                                      selected + projected + logits) *
           sizeof(float);
  }
};

// Of layers without experts.
std::int64_t up_width(const ModelConfig& config) {
  return config.plain_ffn() * (config.mlp.gated ? 2 : 1);
}

std::int64_t expert_floats(const ModelConfig& config, std::int64_t rows) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0) return 0;
  const ExpertLayout layout =
      expert_layout({rows, config.hidden_size, experts.count, experts.per_token, experts.ffn_size});
  return layout.bytes / static_cast<std::int64_t>(sizeof(float));
}

ScratchSizes scratch_sizes(const ModelConfig& config, const BatchLimits& limits) {
  const std::int64_t rows = limits.rows;
  const bool projects = config.embed_dim != config.hidden_size;
  ScratchSizes sizes{};
  sizes.x = rows * config.hidden_size;
  sizes.normed = rows * config.hidden_size;
  sizes.embedded = projects ? rows * config.embed_dim : 0;
  sizes.qkv = rows * (config.q_width() + 2 * config.kv_width());
  sizes.attended = rows * config.q_width();
  sizes.up = rows * up_width(config);
  sizes.experts = expert_floats(config, rows);
  sizes.selected = limits.logit_rows * config.hidden_size;
  sizes.projected = projects ? limits.logit_rows * config.embed_dim : 0;
  sizes.logits = limits.logit_rows * config.vocab_size;
  return sizes;
}

Matrix matrix(const Buffer& buffer, std::int64_t rows, std::int64_t cols) {
  return {buffer.data(), DType::kF32, rows, cols, cols};
}

// Columns [first, first + cols) of a row-major F32 matrix.
Matrix columns(Matrix all, std::int64_t first, std::int64_t cols) {
  return {static_cast<float*>(all.data) + first, DType::kF32, all.rows, cols, all.row_stride};
}

Matrix rows_of(const Matrix& all, ZigzagBlock::Rows rows) {
  const auto row_bytes = all.row_stride * static_cast<std::int64_t>(dtype_bytes(all.dtype));
  return {static_cast<std::byte*>(all.data) + rows.first * row_bytes, all.dtype, rows.count,
          all.cols, all.row_stride};
}

Matrix rows_of(const Buffer& buffer, ZigzagBlock::Rows rows, std::int64_t cols) {
  return rows_of(matrix(buffer, rows.first + rows.count, cols), rows);
}

NormStep norm_step(const ModelConfig& config, const float* weight, const float* bias) {
  return {.rms = config.norms.kind != Norm::kLayerNorm,
          .weight = weight,
          .bias = bias,
          .weight_offset = config.norms.weight_offset(),
          .eps = static_cast<float>(config.norms.eps)};
}

void norm(const NormStep& step, Ops& ops, ConstMatrix x, Matrix y, Stream& stream) {
  if (step.rms) {
    ops.rms_norm(x, step.weight, step.weight_offset, step.eps, y, stream);
  } else {
    ops.layer_norm(x, step.weight, step.bias, step.eps, y, stream);
  }
}

// x += norm(branch), where the model has a norm of what branches give.
void add_output(const ModelConfig& config, Ops& ops, const float* weight, ConstMatrix branch,
                Matrix x, Stream& stream) {
  ops.add_rms_norm(branch, weight, config.norms.weight_offset(),
                   static_cast<float>(config.norms.eps), x, stream);
}

}  // namespace

std::uint64_t DecoderModel::scratch_bytes(const ModelConfig& config, const BatchLimits& limits,
                                          int threads) {
  return scratch_sizes(config, limits).bytes() +
         DecoderAttention::scratch_bytes(config, limits, threads);
}

DecoderModel::DecoderModel(const ModelConfig& config, const ModelWeights& weights, Ops& ops,
                           int threads, const BatchLimits& limits, MemoryPool& pool,
                           TransferEngine* transfers)
    : config_(config),
      weights_(&weights),
      ops_(&ops),
      limits_(limits),
      ropes_(config),
      attention_(config_, ropes_, ops, threads, limits, pool),
      weight_stream_(weights, transfers, pool) {
  TRIPHASE_CHECK(std::ssize(weights.layers) == config.layers, "weights of another model");
  const ScratchSizes sizes = scratch_sizes(config, limits);
  const auto take = [&pool](std::int64_t elements) {
    return elements == 0 ? Buffer{}
                         : pool.allocate(static_cast<std::size_t>(elements) * sizeof(float),
                                         MemoryTag::kActivations);
  };
  x_ = take(sizes.x);
  normed_ = take(sizes.normed);
  embedded_ = take(sizes.embedded);
  qkv_ = take(sizes.qkv);
  attended_ = take(sizes.attended);
  up_ = take(sizes.up);
  experts_ = take(sizes.experts);
  for (const RopeTable& table : ropes_.tables()) rope_rows_.emplace_back(table, limits.rows);
  angles_.resize(rope_rows_.size());
  selected_ = take(sizes.selected);
  projected_ = take(sizes.projected);
  logits_ = take(sizes.logits);
  positions_.resize(static_cast<std::size_t>(limits.rows));
}

std::uint64_t DecoderModel::rope_key_for_prompt(std::int64_t prompt_tokens) const {
  return ropes_.key_for_prompt(prompt_tokens);
}

ConstMatrix DecoderModel::forward(const ForwardBatch& batch, KvStore& kv, Stream& stream) {
  const auto rows = std::ssize(batch.tokens);
  TRIPHASE_CHECK(rows > 0 && rows <= limits_.rows &&
                     std::ssize(batch.segments) <= limits_.segments &&
                     std::ssize(batch.logit_rows) <= limits_.logit_rows,
                 "a batch beyond the limits the buffers were made for");
  const bool announces = ops_->begin_step(stream);
  fill_positions(batch, stream);
  attention_.begin(kv, batch.segments, angles_, stream);
  if (announces) announce(batch, stream);
  attention_.begin_layers(stream);
  Matrix x = matrix(x_, rows, config_.hidden_size);
  embed(batch, x, stream);
  zigzag_.begin(batch.segments);
  TRIPHASE_CHECK(attention_.hidden_states() == nullptr || zigzag_.batches().size() == 1,
                 "cached hidden states of all rows together");
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    TraceSpan span(trace_, TraceLane::kCompute, "layer");
    span.note("layer", layer);
    const LayerWeights& w = [&]() -> const LayerWeights& {
      const TraceSpan wait(trace_, TraceLane::kCompute, "wait for weights",
                           weight_stream_.streams());
      return weight_stream_.acquire(layer);
    }();
    x = run_layer(layer, w, batch, x, stream);
    weight_stream_.done(layer);
  }
  attention_.finish();
  return head(batch, x, stream);
}

bool DecoderModel::narrows(const ForwardBatch& batch) {
  return batch.logit_rows.size() < batch.tokens.size();
}

Matrix DecoderModel::run_layer(std::int64_t layer, const LayerWeights& w, const ForwardBatch& batch,
                               Matrix x, Stream& stream) {
  const std::int64_t rows = x.rows;
  std::span<const ZigzagBlock::Rows> parts = zigzag_.batches();
  for (const ZigzagBlock::Rows& part : parts) project_heads(layer, w, part, stream);
  // From here on the last layer has nothing to compute for rows whose logits nobody wants.
  const bool narrow = layer + 1 == config_.layers && narrows(batch);
  const ZigzagBlock::Rows wanted{0, std::ssize(batch.logit_rows)};
  if (narrow) {
    parts = std::span(&wanted, wanted.count > 0 ? 1 : 0);
    const Matrix selected = rows_of(selected_, wanted, config_.hidden_size);
    if (!parts.empty()) ops_->gather_rows(x, batch.logit_rows, selected, stream);
    x = selected;
  }
  for (const ZigzagBlock::Rows& part : parts) {
    add_parallel_mlp(w, part, rows_of(x, part), stream);
  }
  Matrix attended = matrix(attended_, rows, config_.q_width());
  if (!narrow) attended.dtype = attention_.attended_type(layer, w);
  attention_.attend(layer, w, heads_of(rows), attended, !parts.empty(), stream);
  if (narrow && !parts.empty()) {
    // Nobody reads the heads any more.
    const Matrix selected = rows_of(qkv_, wanted, config_.q_width());
    ops_->gather_rows(attended, batch.logit_rows, selected, stream);
    attended = selected;
  }
  for (const ZigzagBlock::Rows& part : parts) {
    after_attention(w, part, rows_of(attended, part), rows_of(x, part), stream);
  }
  return x;
}

// In the order of their first use, with what they will be called with.
void DecoderModel::announce(const ForwardBatch& batch, Stream& stream) {
  const auto rows = std::ssize(batch.tokens);
  embed_tokens(batch, stream);
  add_positions(batch, stream);
  attention_.announce(heads_of(rows), matrix(attended_, rows, config_.q_width()), stream);
  const auto logit_rows = std::ssize(batch.logit_rows);
  if (logit_rows > 0) {
    ops_->gather_rows(matrix(x_, rows, config_.hidden_size), batch.logit_rows,
                      matrix(selected_, logit_rows, config_.hidden_size), stream);
  }
  if (!batch.sampled.empty()) {
    ops_->sample(matrix(logits_, logit_rows, config_.vocab_size), batch.sampled, nullptr, {},
                 stream);
  }
  ops_->end_announcing(stream);
}

void DecoderModel::embed(const ForwardBatch& batch, Matrix x, Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "embed");
  const Matrix embedded = embed_tokens(batch, stream);
  if (embedded.data != x.data) {
    ops_->linear(embedded, weights_->embed_project_in, nullptr, false, x, stream);
  }
  add_positions(batch, stream);
}

Matrix DecoderModel::embed_tokens(const ForwardBatch& batch, Stream& stream) {
  const auto rows = std::ssize(batch.tokens);
  const Matrix embedded = weights_->embed_project_in.empty()
                              ? matrix(x_, rows, config_.hidden_size)
                              : matrix(embedded_, rows, config_.embed_dim);
  ops_->embed(batch.tokens, weights_->embedding, config_.embedding.scale, embedded, stream);
  return embedded;
}

void DecoderModel::add_positions(const ForwardBatch& batch, Stream& stream) {
  if (weights_->positions.empty()) return;
  ops_->add_positions(std::span(positions_).first(batch.tokens.size()), weights_->positions,
                      matrix(x_, std::ssize(batch.tokens), config_.hidden_size), stream);
}

DecoderAttention::Heads DecoderModel::heads_of(std::int64_t rows) const {
  const std::int64_t q = config_.q_width();
  const std::int64_t kv = config_.kv_width();
  const Matrix qkv = matrix(qkv_, rows, q + 2 * kv);
  return {columns(qkv, 0, q), columns(qkv, q, kv), columns(qkv, q + kv, kv)};
}

void DecoderModel::project_heads(std::int64_t layer, const LayerWeights& w, ZigzagBlock::Rows rows,
                                 Stream& stream) {
  const Matrix x = rows_of(x_, rows, config_.hidden_size);
  const Matrix qkv = rows_of(qkv_, rows, config_.q_width() + 2 * config_.kv_width());
  const Matrix normed = rows_of(normed_, rows, config_.hidden_size);
  project_qkv(layer, w, x, normed, qkv, stream);
  norm_of_heads(config_, w.query_norm, config_.heads, columns(qkv, 0, config_.q_width()), *ops_,
                stream);
  norm_of_heads(config_, w.key_norm, config_.kv_heads,
                columns(qkv, config_.q_width(), config_.kv_width()), *ops_, stream);
}

void DecoderModel::add_parallel_mlp(const LayerWeights& w, ZigzagBlock::Rows rows, Matrix x,
                                    Stream& stream) {
  if (!config_.norms.before || !config_.parallel_residual) return;
  // Both branches read the same x: the MLP's input must exist before attention adds to x.
  add_mlp(w, rows_of(normed_, rows, config_.hidden_size), rows, x, stream);
}

void DecoderModel::after_attention(const LayerWeights& w, ZigzagBlock::Rows rows, Matrix attended,
                                   Matrix x, Stream& stream) {
  const Matrix normed = rows_of(normed_, rows, config_.hidden_size);
  {
    const TraceSpan span(trace_, TraceLane::kCompute, "output");
    const bool output = config_.norms.output;
    ops_->linear(attended, w.attention_out, w.attention_out_bias, !output, output ? normed : x,
                 stream);
    attention_.projected();
    if (output) add_output(config_, *ops_, w.attention_output_norm, normed, x, stream);
  }
  if (config_.norms.before && config_.parallel_residual) return;
  const auto norm_sum = [&](const float* weight, const float* bias) {
    if (!config_.norms.after_sum()) return;
    norm(norm_step(config_, weight, bias), *ops_, x, x, stream);
  };
  norm_sum(w.attention_norm, w.attention_norm_bias);
  add_mlp(w, normed, rows, x, stream);
  norm_sum(w.mlp_norm, w.mlp_norm_bias);
}

void DecoderModel::add_mlp(const LayerWeights& w, Matrix normed, ZigzagBlock::Rows rows, Matrix x,
                           Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "mlp");
  if (!w.router.empty()) {
    add_experts(w, normed, x, stream);
    return;
  }
  Matrix up = rows_of(up_, rows, up_width(config_));
  const std::int64_t ffn = config_.ffn_size;
  up.cols = config_.mlp.gated ? 2 * ffn : ffn;
  if (config_.norms.before) {
    ops_->norm_linear(x, norm_step(config_, w.mlp_norm, w.mlp_norm_bias), normed, w.up, w.up_bias,
                      false, up, stream);
  } else {
    ops_->linear(x, w.up, w.up_bias, false, up, stream);
  }
  const Matrix gate = columns(up, 0, ffn);
  const ConstMatrix gated = config_.mlp.gated ? columns(up, ffn, ffn) : Matrix{};
  const bool output = config_.norms.output;
  ops_->activation_linear(config_.mlp.activation, gate, gated, w.down, w.down_bias, !output,
                          output ? normed : x, stream);
  if (output) add_output(config_, *ops_, w.mlp_output_norm, normed, x, stream);
}

void DecoderModel::add_experts(const LayerWeights& w, Matrix normed, Matrix x, Stream& stream) {
  if (config_.norms.before) {
    norm(norm_step(config_, w.mlp_norm, w.mlp_norm_bias), *ops_, x, normed, stream);
  }
  const bool output = config_.norms.output;
  const ExpertLayer layer{.router = w.router,
                          .up = w.up,
                          .down = w.down,
                          .router_bias = w.router_bias,
                          .up_bias = w.up_bias,
                          .down_bias = w.down_bias,
                          .activation = config_.mlp.activation,
                          .per_row = config_.experts.per_token,
                          .shares_sum_to_one = config_.experts.shares_sum_to_one};
  ops_->experts(config_.norms.before ? normed : x, layer, !output, output ? normed : x,
                {experts_.data(), experts_.bytes()}, stream);
  if (output) add_output(config_, *ops_, w.mlp_output_norm, normed, x, stream);
}

void DecoderModel::project_qkv(std::int64_t layer, const LayerWeights& w, ConstMatrix x,
                               Matrix normed, Matrix qkv, Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "qkv");
  const NormStep step = norm_step(config_, w.attention_norm, w.attention_norm_bias);
  HiddenStates* inputs = attention_.hidden_states();
  if (config_.norms.before && inputs == nullptr) {
    ops_->norm_linear(x, step, normed, w.qkv, w.qkv_bias, false, qkv, stream);
    return;
  }
  // Cached hidden states are made of what the products read.
  if (config_.norms.before) norm(step, *ops_, x, normed, stream);
  const ConstMatrix input = config_.norms.before ? normed : x;
  ops_->linear(input, w.qkv, w.qkv_bias, false, qkv, stream);
  if (inputs == nullptr) return;
  inputs->project(LayerId(layer), w, input, columns(qkv, config_.q_width(), 2 * config_.kv_width()),
                  stream);
}

ConstMatrix DecoderModel::head(const ForwardBatch& batch, ConstMatrix x, Stream& stream) {
  const auto rows = std::ssize(batch.logit_rows);
  const Matrix logits = matrix(logits_, rows, config_.vocab_size);
  if (rows == 0) return logits;
  const TraceSpan span(trace_, TraceLane::kCompute, "head");
  const Matrix selected = matrix(selected_, rows, config_.hidden_size);
  if (!narrows(batch)) ops_->gather_rows(x, batch.logit_rows, selected, stream);
  if (config_.norms.final_norm) {
    norm(norm_step(config_, weights_->final_norm, weights_->final_norm_bias), *ops_, selected,
         selected, stream);
  }
  ConstMatrix input = selected;
  if (!weights_->embed_project_out.empty()) {
    const Matrix projected = matrix(projected_, rows, config_.embed_dim);
    ops_->linear(selected, weights_->embed_project_out, nullptr, false, projected, stream);
    input = projected;
  }
  ops_->linear(input, weights_->lm_head, nullptr, false, logits, stream);
  if (config_.logits.cap > 0.0) {
    ops_->soft_cap(static_cast<float>(config_.logits.cap), logits, stream);
  }
  return logits;
}

void DecoderModel::fill_positions(const ForwardBatch& batch, Stream& stream) {
  std::int64_t row = 0;
  for (const BatchSegment& segment : batch.segments) {
    TRIPHASE_CHECK(segment.first_row == row && segment.count > 0, "segments must cover the batch");
    for (std::int64_t i = 0; i < segment.count; ++i, ++row) {
      const std::int64_t position = segment.first_position + i;
      positions_[row] = static_cast<std::int32_t>(position + config_.embedding.position_offset);
      for (RopeRows& rows : rope_rows_) rows.set(row, segment.rope_key, position);
    }
  }
  TRIPHASE_CHECK(row == std::ssize(batch.tokens), "segments must cover the batch");
  for (std::size_t i = 0; i < rope_rows_.size(); ++i) {
    angles_[i] = rope_rows_[i].send(row, *ops_, stream);
  }
}

}  // namespace triphase
