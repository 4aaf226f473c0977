#include "models/decoder_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/sizing/attention_workspace.h"
#include "models/kv_projection.h"

namespace triphase {
namespace {

// The buffers of one forward call in elements of F32: the constructor allocates this list and
// scratch_bytes() adds it up, so that plan and run cannot disagree.
struct ScratchSizes {
  std::int64_t x, normed, embedded, qkv, attended, up, selected, projected, logits;
  std::uint64_t workspace_bytes;

  [[nodiscard]] std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(x + normed + embedded + qkv + attended + up + selected +
                                      projected + logits) *
               sizeof(float) +
           workspace_bytes;
  }
};

AttentionShape largest_attention(const ModelConfig& config, const BatchLimits& limits,
                                 int threads) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .max_query_rows = limits.rows,
          .max_context = limits.context,
          .threads = threads,
          .weighted_scores = limits.sparse ? limits.context * config.heads : 0};
}

std::int64_t up_width(const ModelConfig& config) {
  return config.ffn_size * (config.mlp.gated ? 2 : 1);
}

ScratchSizes scratch_sizes(const ModelConfig& config, const BatchLimits& limits, int threads) {
  const std::int64_t rows = limits.rows;
  const bool projects = config.embed_dim != config.hidden_size;
  ScratchSizes sizes{};
  sizes.x = rows * config.hidden_size;
  sizes.normed = rows * config.hidden_size;
  sizes.embedded = projects ? rows * config.embed_dim : 0;
  sizes.qkv = rows * (config.q_width() + 2 * config.kv_width());
  sizes.attended = rows * config.q_width();
  sizes.up = rows * up_width(config);
  sizes.selected = limits.logit_rows * config.hidden_size;
  sizes.projected = projects ? limits.logit_rows * config.embed_dim : 0;
  sizes.logits = limits.logit_rows * config.vocab_size;
  sizes.workspace_bytes = attention_workspace_bytes(largest_attention(config, limits, threads));
  return sizes;
}

// Rows that LayerInputs works with at once: a step's, or a block's.
std::int64_t input_rows(const BatchLimits& limits) {
  return std::max(limits.rows, limits.input_block_tokens);
}

Matrix matrix(const Buffer& buffer, std::int64_t rows, std::int64_t cols) {
  return {buffer.data(), DType::kF32, rows, cols, cols};
}

// Columns [first, first + cols) of a row-major F32 matrix.
Matrix columns(Matrix all, std::int64_t first, std::int64_t cols) {
  return {static_cast<float*>(all.data) + first, DType::kF32, all.rows, cols, all.row_stride};
}

Matrix rows_of(const Buffer& buffer, ZigzagBlock::Rows rows, std::int64_t cols) {
  return {buffer.as<float>() + rows.first * cols, DType::kF32, rows.count, cols, cols};
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

// x += mlp(x), with the norms of what it reads and gives; `normed` and `up` are overwritten.
void add_mlp(const ModelConfig& config, Ops& ops, const LayerWeights& w, Matrix normed, Matrix up,
             Matrix x, Trace* trace, Stream& stream) {
  const TraceSpan span(trace, TraceLane::kCompute, "mlp");
  if (config.norms.before) {
    ops.norm_linear(x, norm_step(config, w.mlp_norm, w.mlp_norm_bias), normed, w.up, w.up_bias,
                    false, up, stream);
  } else {
    ops.linear(x, w.up, w.up_bias, false, up, stream);
  }
  const std::int64_t ffn = config.ffn_size;
  const Matrix gate = columns(up, 0, ffn);
  const ConstMatrix gated = config.mlp.gated ? columns(up, ffn, ffn) : Matrix{};
  const bool output = config.norms.output;
  ops.activation_linear(config.mlp.activation, gate, gated, w.down, w.down_bias, !output,
                        output ? normed : x, stream);
  if (output) add_output(config, ops, w.mlp_output_norm, normed, x, stream);
}

}  // namespace

std::uint64_t DecoderModel::scratch_bytes(const ModelConfig& config, const BatchLimits& limits,
                                          int threads) {
  std::uint64_t bytes = scratch_sizes(config, limits, threads).bytes();
  if (limits.sparse) {
    bytes += AttentionRunner::workspace_bytes(largest_attention(config, limits, threads));
  }
  if (limits.input_block_tokens > 0) {
    bytes += LayerInputs::scratch_bytes(config, input_rows(limits), limits.listed_input_tokens);
  }
  return bytes;
}

DecoderModel::DecoderModel(const ModelConfig& config, const ModelWeights& weights, Ops& ops,
                           int threads, const BatchLimits& limits, MemoryPool& pool,
                           TransferEngine* transfers)
    : config_(config),
      weights_(&weights),
      ops_(&ops),
      limits_(limits),
      ropes_(config),
      threads_(threads),
      weight_stream_(weights, transfers, pool) {
  TRIPHASE_CHECK(static_cast<std::int64_t>(weights.layers.size()) == config.layers,
                 "weights of another model");
  const ScratchSizes sizes = scratch_sizes(config, limits, threads);
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
  for (const RopeTable& table : ropes_.tables()) rope_rows_.emplace_back(table, limits.rows);
  angles_.resize(rope_rows_.size());
  selected_ = take(sizes.selected);
  projected_ = take(sizes.projected);
  logits_ = take(sizes.logits);
  if (sizes.workspace_bytes != 0) {
    workspace_ = pool.allocate(sizes.workspace_bytes, MemoryTag::kWorkspace);
  }
  positions_.resize(static_cast<std::size_t>(limits.rows));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    windows_.push_back(config.window(layer));
  }
}

void DecoderModel::set_attention(const AttentionOptions& options, SparseOps& ops, MemoryPool& pool,
                                 const ContextClusters* clusters) {
  if (!options.sparse()) return;
  TRIPHASE_CHECK(limits_.sparse, "buffers without room for a sparse method");
  runner_ = std::make_unique<AttentionRunner>(
      options, MethodShape{config_.layers, config_.heads, config_.kv_heads, config_.head_dim}, ops,
      largest_attention(config_, limits_, threads_), pool, clusters);
}

void DecoderModel::set_layer_inputs(std::int64_t tokens, InputOps& ops, MemoryPool& pool) {
  if (tokens == 0) return;
  TRIPHASE_CHECK(limits_.input_block_tokens > 0, "buffers for layer inputs");
  inputs_ =
      std::make_unique<LayerInputs>(config_, tokens, input_rows(limits_),
                                    limits_.listed_input_tokens > 0, *ops_, ops, ropes_, pool);
}

void DecoderModel::begin_sequence(SequenceId sequence, std::int64_t prompt_tokens,
                                  std::int64_t longest) {
  if (runner_) runner_->begin(sequence, prompt_tokens, longest);
}

void DecoderModel::end_sequence(SequenceId sequence) {
  if (runner_) runner_->end(sequence);
}

std::uint64_t DecoderModel::rope_key_for_prompt(std::int64_t prompt_tokens) const {
  return ropes_.key_for_prompt(prompt_tokens);
}

ConstMatrix DecoderModel::forward(const ForwardBatch& batch, KvStore& kv, Stream& stream) {
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  TRIPHASE_CHECK(rows > 0 && rows <= limits_.rows &&
                     static_cast<std::int64_t>(batch.segments.size()) <= limits_.segments &&
                     static_cast<std::int64_t>(batch.logit_rows.size()) <= limits_.logit_rows,
                 "a batch beyond the limits the buffers were made for");
  const bool announces = ops_->begin_step(stream);
  fill_positions(batch, stream);
  if (inputs_) inputs_->begin(kv, batch.segments);
  kv_step_.begin(kv, batch.segments, windows_, runner_.get(), stream);
  first_slots_.reset();
  if (announces) announce(batch, stream);
  kv_step_.begin_staging();
  if (host_attention_) host_attention_->begin(kv, batch.segments, kv_step_);
  const Matrix x = matrix(x_, rows, config_.hidden_size);
  embed(batch, x, stream);
  zigzag_.begin(batch.segments);
  const std::span<const ZigzagBlock::Rows> batches = zigzag_.batches();
  TRIPHASE_CHECK(!inputs_ || batches.size() == 1, "layer inputs of all rows together");
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    TraceSpan span(trace_, TraceLane::kCompute, "layer");
    span.note("layer", layer);
    const LayerWeights& w = [&]() -> const LayerWeights& {
      const TraceSpan wait(trace_, TraceLane::kCompute, "wait for weights",
                           weight_stream_.streams());
      return weight_stream_.acquire(layer);
    }();
    for (const ZigzagBlock::Rows& part : batches) before_attention(layer, w, part, stream);
    attend(layer, w, rows, stream);
    for (const ZigzagBlock::Rows& part : batches) after_attention(w, part, stream);
    weight_stream_.done(layer);
  }
  if (host_attention_) host_attention_->finish();
  return head(batch, x, stream);
}

// In the order of their first use, with what they will be called with.
void DecoderModel::announce(const ForwardBatch& batch, Stream& stream) {
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  embed_tokens(batch, stream);
  add_positions(batch, stream);
  make_tables(stream);
  if (runner_) {
    announce_choices(rows, stream);
  } else {
    announce_attention(rows, stream);
  }
  const auto logit_rows = static_cast<std::int64_t>(batch.logit_rows.size());
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

void DecoderModel::make_tables(Stream& stream) {
  const LayerId first(0);
  const std::span<const PageId> partial = kv_step_.take_partial_pages();
  KvSlots slots = kv_step_.slots(first);
  const bool all = kv_step_.same_in_every_layer();
  if (all || kv_step_.wants_slot_tables()) {
    std::span<const AttentionSegment> segments;
    if (all) segments = kv_step_.read(first, 0).segments;
    tables_ = ops_->make_tables(segments, slots, {partial, kv_step_.closes(first).blocks},
                                kv_step_.view(first), stream);
    slots.tables = &tables_;
  }
  if (all) {
    kv_step_.set_tables(&tables_);
  } else if (slots.tables == &tables_) {
    kv_step_.set_slot_tables(&tables_);
  }
  first_slots_ = slots;
}

void DecoderModel::announce_choices(std::int64_t rows, Stream& stream) {
  LayerId layer(0);
  while (layer.value < config_.layers &&
         runner_->method().timing(layer.value) == AttentionMethod::Timing::kDense) {
    layer = LayerId(layer.value + 1);
  }
  if (layer.value == config_.layers) return;
  const Heads heads = heads_of(rows);
  for (std::int64_t group = 0; group < kv_step_.groups(); ++group) {
    const KvStep::Group part = kv_step_.announced(layer, group);
    runner_->announce(layer, part.segments, part.sequences, heads.q, heads.v, kv_step_.view(layer),
                      scale().factor, matrix(attended_, rows, config_.q_width()), stream);
  }
}

void DecoderModel::announce_attention(std::int64_t rows, Stream& stream) {
  if (!kv_step_.same_in_every_layer()) return;
  const std::span<const AttentionSegment> segments = kv_step_.read(LayerId(0), 0).segments;
  if (segments.empty()) return;
  ops_->attention(heads_of(rows).q, config_.heads, kv_step_.view(LayerId(0)), segments, scale(),
                  matrix(attended_, rows, config_.q_width()), {}, stream);
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
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  const Matrix embedded = weights_->embed_project_in.empty()
                              ? matrix(x_, rows, config_.hidden_size)
                              : matrix(embedded_, rows, config_.embed_dim);
  ops_->embed(batch.tokens, weights_->embedding, config_.embedding.scale, embedded, stream);
  return embedded;
}

void DecoderModel::add_positions(const ForwardBatch& batch, Stream& stream) {
  if (weights_->positions.empty()) return;
  ops_->add_positions(
      std::span(positions_).first(batch.tokens.size()), weights_->positions,
      matrix(x_, static_cast<std::int64_t>(batch.tokens.size()), config_.hidden_size), stream);
}

DecoderModel::Heads DecoderModel::heads_of(std::int64_t rows) const {
  const std::int64_t q = config_.q_width();
  const std::int64_t kv = config_.kv_width();
  const Matrix qkv = matrix(qkv_, rows, q + 2 * kv);
  return {columns(qkv, 0, q), columns(qkv, q, kv), columns(qkv, q + kv, kv)};
}

ScoreScale DecoderModel::scale() const {
  return {static_cast<float>(config_.attention.score_scale.value_or(
              1.0 / std::sqrt(static_cast<double>(config_.head_dim)))),
          static_cast<float>(config_.attention.score_cap)};
}

void DecoderModel::before_attention(std::int64_t layer, const LayerWeights& w,
                                    ZigzagBlock::Rows rows, Stream& stream) {
  const Matrix x = rows_of(x_, rows, config_.hidden_size);
  const Matrix qkv = rows_of(qkv_, rows, config_.q_width() + 2 * config_.kv_width());
  const Matrix normed = rows_of(normed_, rows, config_.hidden_size);
  project_qkv(layer, w, x, normed, qkv, stream);
  norm_of_heads(config_, w.query_norm, config_.heads, columns(qkv, 0, config_.q_width()), *ops_,
                stream);
  norm_of_heads(config_, w.key_norm, config_.kv_heads,
                columns(qkv, config_.q_width(), config_.kv_width()), *ops_, stream);
  if (!config_.norms.before || !config_.parallel_residual) return;
  // Both branches read the same x: the MLP's input must exist before attention adds to x.
  add_mlp(config_, *ops_, w, normed, rows_of(up_, rows, up_width(config_)), x, trace_, stream);
}

void DecoderModel::after_attention(const LayerWeights& w, ZigzagBlock::Rows rows, Stream& stream) {
  const Matrix x = rows_of(x_, rows, config_.hidden_size);
  const Matrix normed = rows_of(normed_, rows, config_.hidden_size);
  {
    const TraceSpan span(trace_, TraceLane::kCompute, "output");
    const bool output = config_.norms.output;
    ops_->linear(rows_of(attended_, rows, config_.q_width()), w.attention_out, w.attention_out_bias,
                 !output, output ? normed : x, stream);
    if (output) add_output(config_, *ops_, w.attention_output_norm, normed, x, stream);
  }
  if (config_.norms.before && config_.parallel_residual) return;
  const auto norm_sum = [&](const float* weight, const float* bias) {
    if (!config_.norms.after_sum()) return;
    norm(norm_step(config_, weight, bias), *ops_, x, x, stream);
  };
  norm_sum(w.attention_norm, w.attention_norm_bias);
  add_mlp(config_, *ops_, w, normed, rows_of(up_, rows, up_width(config_)), x, trace_, stream);
  norm_sum(w.mlp_norm, w.mlp_norm_bias);
}

void DecoderModel::project_qkv(std::int64_t layer, const LayerWeights& w, ConstMatrix x,
                               Matrix normed, Matrix qkv, Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "qkv");
  const NormStep step = norm_step(config_, w.attention_norm, w.attention_norm_bias);
  if (config_.norms.before && !inputs_) {
    ops_->norm_linear(x, step, normed, w.qkv, w.qkv_bias, false, qkv, stream);
    return;
  }
  // Layer inputs are made of what the products read.
  if (config_.norms.before) norm(step, *ops_, x, normed, stream);
  const ConstMatrix input = config_.norms.before ? normed : x;
  ops_->linear(input, w.qkv, w.qkv_bias, false, qkv, stream);
  if (!inputs_) return;
  inputs_->project(LayerId(layer), w, input,
                   columns(qkv, config_.q_width(), 2 * config_.kv_width()), stream);
}

void DecoderModel::attend(std::int64_t layer, const LayerWeights& w, std::int64_t rows,
                          Stream& stream) {
  const auto [q, k, v] = heads_of(rows);
  const KvLayerView cache = append_kv(layer, q, k, v, stream);
  const Matrix attended = matrix(attended_, rows, config_.q_width());
  const ScoreScale scale = this->scale();
  if (host_attention_) host_attention_->send(LayerId(layer), q);
  for (std::int64_t group = 0; group < kv_step_.groups(); ++group) {
    const KvStep::Group part = wait_for_kv(layer, group);
    recompute(layer, w, part.recomputes, part.listed_recomputes, cache, stream);
    const Workspace workspace{workspace_.data(), workspace_.bytes()};
    Selection chosen;
    if (runner_) chosen = choose(layer, group, part, w, q, v, cache, scale.factor, stream);
    const TraceSpan span(trace_, TraceLane::kCompute, "attend");
    if (runner_) {
      runner_->attend(LayerId(layer), part.segments, part.sequences, chosen, q, cache, scale.factor,
                      attended, *ops_, workspace, stream);
    } else if (!part.segments.empty()) {
      ops_->attention(q, config_.heads, cache, part.segments, scale, attended, workspace, stream);
    }
    kv_step_.done(group);
  }
  if (host_attention_ && host_attention_->active()) {
    const TraceSpan span(trace_, TraceLane::kCompute, "attend on host");
    host_attention_->attend(LayerId(layer), windows_[static_cast<std::size_t>(layer)], scale,
                            attended, stream);
  }
}

KvLayerView DecoderModel::append_kv(std::int64_t layer, Matrix q, Matrix k, Matrix v,
                                    Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "append");
  // Those of the first layer are asked for once.
  const bool known = layer == 0 && first_slots_.has_value();
  const KvSlots slots = known ? *first_slots_ : kv_step_.slots(LayerId(layer));
  const KvLayerView cache = kv_step_.view(LayerId(layer));
  if (const std::optional<std::size_t> rope = ropes_.of(layer)) {
    ops_->rope_and_append(q, config_.heads, k, v, ropes_.tables()[*rope].rotary_dim(),
                          angles_[*rope], slots, cache, stream);
  } else {
    ops_->kv_append(k, v, slots, cache, stream);
  }
  const KvCloses closes = kv_step_.closes(LayerId(layer));
  if (!closes.blocks.empty()) ops_->kv_close(closes, cache, stream);
  return cache;
}

KvStep::Group DecoderModel::wait_for_kv(std::int64_t layer, std::int64_t group) {
  TraceSpan span(trace_, TraceLane::kCompute, "wait for KV", kv_step_.staging());
  span.note("group", group);
  KvStep::Group part = kv_step_.read(LayerId(layer), group);
  if (part.prefetched_blocks > 0) span.note("blocks_for_next_step", part.prefetched_blocks);
  return part;
}

Selection DecoderModel::choose(std::int64_t layer, std::int64_t group, const KvStep::Group& part,
                               const LayerWeights& w, ConstMatrix q, ConstMatrix v,
                               const KvLayerView& cache, float scale, Stream& stream) {
  Selection chosen;
  {
    const TraceSpan span(trace_, TraceLane::kCompute, "choose");
    chosen = runner_->choose(LayerId(layer), part.segments, part.sequences, q, v, cache, scale,
                             part.looked_up, stream);
  }
  if (!part.looks_up || part.looked_up != nullptr) return chosen;
  TokenLookup::Found found;
  {
    TraceSpan span(trace_, TraceLane::kCompute, "wait for KV");
    span.note("group", group);
    found = kv_step_.look_up(LayerId(layer), group, chosen);
  }
  recompute(layer, w, {}, found.recomputed, cache, stream);
  return found.lists;
}

void DecoderModel::recompute(std::int64_t layer, const LayerWeights& w,
                             std::span<const KvRecompute> blocks, const RecomputedTokens& listed,
                             const KvLayerView& cache, Stream& stream) {
  if (blocks.empty() && listed.most == 0) return;
  TRIPHASE_CHECK(inputs_ != nullptr, "recomputable blocks have layer inputs");
  TraceSpan span(trace_, TraceLane::kRecompute, "recompute");
  // How many tokens a GPU has listed the host does not know.
  if (listed.most == 0) span.note("tokens", std::ssize(blocks) * cache.page_tokens);
  if (!blocks.empty()) inputs_->recompute(LayerId(layer), w, blocks, cache, stream);
  if (listed.most > 0) inputs_->recompute(LayerId(layer), w, listed, cache, stream);
}

ConstMatrix DecoderModel::head(const ForwardBatch& batch, ConstMatrix x, Stream& stream) {
  const auto rows = static_cast<std::int64_t>(batch.logit_rows.size());
  const Matrix logits = matrix(logits_, rows, config_.vocab_size);
  if (rows == 0) return logits;
  const TraceSpan span(trace_, TraceLane::kCompute, "head");
  const Matrix selected = matrix(selected_, rows, config_.hidden_size);
  ops_->gather_rows(x, batch.logit_rows, selected, stream);
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
      positions_[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(position + config_.embedding.position_offset);
      for (RopeRows& rows : rope_rows_) rows.set(row, segment.rope_key, position);
    }
  }
  TRIPHASE_CHECK(row == static_cast<std::int64_t>(batch.tokens.size()),
                 "segments must cover the batch");
  for (std::size_t i = 0; i < rope_rows_.size(); ++i) {
    angles_[i] = rope_rows_[i].send(row, *ops_, stream);
  }
}

}  // namespace triphase
