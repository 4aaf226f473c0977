#include "models/decoder_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/sizing/attention_workspace.h"

namespace triphase {
namespace {

AttentionShape largest_attention(const ModelConfig& config, const BatchLimits& limits,
                                 int threads) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .max_query_rows = limits.rows,
          .max_context = limits.context,
          .threads = threads};
}

// Rows that HiddenStates works with at once: a step's, or a block's.
std::int64_t input_rows(const BatchLimits& limits) {
  return std::max(limits.rows, limits.input_block_tokens);
}

}  // namespace

std::uint64_t DecoderAttention::scratch_bytes(const ModelConfig& config, const BatchLimits& limits,
                                              int threads) {
  const AttentionShape largest = largest_attention(config, limits, threads);
  std::uint64_t bytes = attention_workspace_bytes(largest);
  if (limits.sparse) bytes += AttentionRunner::workspace_bytes(largest);
  if (limits.input_block_tokens > 0) {
    bytes += HiddenStates::scratch_bytes(config, input_rows(limits), limits.listed_input_tokens);
  }
  return bytes;
}

DecoderAttention::DecoderAttention(const ModelConfig& config, const LayerRopes& ropes, Ops& ops,
                                   int threads, const BatchLimits& limits, MemoryPool& pool)
    : config_(&config), ropes_(&ropes), ops_(&ops), threads_(threads), limits_(limits) {
  const std::uint64_t bytes = attention_workspace_bytes(largest_attention(config, limits, threads));
  if (bytes != 0) workspace_ = pool.allocate(bytes, MemoryTag::kWorkspace);
  windows_.resize(static_cast<std::size_t>(config.layers));
}

void DecoderAttention::set_method(const AttentionOptions& options, SparseOps& ops, MemoryPool& pool,
                                  const ContextClusters* clusters) {
  if (!options.sparse()) return;
  TRIPHASE_CHECK(limits_.sparse, "buffers without room for a sparse method");
  runner_ = std::make_unique<AttentionRunner>(options, method_shape(*config_), ops,
                                              largest_attention(*config_, limits_, threads_), pool,
                                              clusters);
}

void DecoderAttention::set_hidden_states(std::int64_t tokens, InputOps& ops, MemoryPool& pool) {
  if (tokens == 0) return;
  TRIPHASE_CHECK(limits_.input_block_tokens > 0, "buffers for cached hidden states");
  inputs_ =
      std::make_unique<HiddenStates>(*config_, tokens, input_rows(limits_),
                                     limits_.listed_input_tokens > 0, *ops_, ops, *ropes_, pool);
}

void DecoderAttention::begin_sequence(SequenceId sequence, std::int64_t prompt_tokens,
                                      std::int64_t longest) {
  if (runner_) runner_->begin(sequence, prompt_tokens, longest);
}

void DecoderAttention::end_sequence(SequenceId sequence) {
  if (runner_) runner_->end(sequence);
}

void DecoderAttention::set_host_attention(std::int64_t rows, Ops& ops, MemoryPool& host_pool) {
  host_attention_ =
      std::make_unique<HostAttention>(*config_, rows, limits_.context, threads_, ops, host_pool);
}

void DecoderAttention::begin(KvStore& kv, std::span<const BatchSegment> rows,
                             std::span<const ConstMatrix> angles, Stream& stream) {
  store_ = &kv;
  rows_ = rows;
  angles_ = angles;
  first_slots_.reset();
  // Those of a prompt may choose together (prompt units).
  decodes_ = std::ranges::all_of(rows, [&](const BatchSegment& row) {
    return row.count == 1 &&
           (runner_ == nullptr || runner_->decodes(row.sequence, row.first_position + 1));
  });
  std::int64_t longest = 0;
  for (const BatchSegment& row : rows) longest = std::max(longest, row.first_position + row.count);
  for (std::int64_t layer = 0; layer < config_->layers; ++layer) {
    const std::int64_t window = config_->window(layer);
    windows_[layer] = window < longest ? window : 0;
  }
  if (inputs_) inputs_->begin(kv, rows);
  kv_step_.begin(kv, rows, windows_, runner_.get(), stream);
}

void DecoderAttention::announce(const Heads& heads, Matrix attended, Stream& stream) {
  make_tables(stream);
  if (runner_) {
    runner_->choose_ahead(rows_, true, stream);
    announce_choices(heads, stream);
  } else {
    announce_dense(heads, attended, stream);
  }
}

void DecoderAttention::make_tables(Stream& stream) {
  NewTokenSlots& new_tokens = kv_step_.new_tokens();
  const LayerSets& sets = store_->memory().shape().sets;
  const std::span<const PageId> partial =
      new_tokens.partial_blocks().take_for_step(config_->layers);
  tables_.resize(static_cast<std::size_t>(sets.count()));
  LayerId asked(0);  // whose slots were asked for last
  KvSlots slots = new_tokens.slots(asked);
  for (std::int64_t set = 0; set < sets.count(); ++set) {
    const bool wants = new_tokens.wants_tables(set);
    if (!wants && !kv_step_.same_in_set(set)) continue;
    if (wants && asked != sets.first(set)) {
      asked = sets.first(set);
      slots = new_tokens.slots(asked);
    }
    make_tables(set, slots, partial, stream);
  }
  // They have the same rows, and one plan serves them all.
  for (SegmentTables& tables : tables_) tables.lengths = tables_.back().lengths;
  if (asked != LayerId(0)) slots = new_tokens.slots(LayerId(0));
  const LayerSets::Place first = sets.of(LayerId(0));
  slots.tables = new_tokens.full_blocks(LayerId(0)).tables;
  slots.table_layer = first.page;
  first_slots_ = slots;
}

void DecoderAttention::make_tables(std::int64_t set, const KvSlots& slots,
                                   std::span<const PageId> partial_pages, Stream& stream) {
  const LayerSets& sets = store_->memory().shape().sets;
  const LayerId first = sets.first(set);
  if (sets.apart() && !partial_pages.empty()) {
    const std::size_t rows = rows_.size();
    partial_pages_.clear();
    for (LayerId layer(0); layer.value < config_->layers; layer = LayerId(layer.value + 1)) {
      if (sets.of(layer).set != set) continue;
      const auto of_layer = partial_pages.subspan(layer.index() * rows, rows);
      partial_pages_.insert(partial_pages_.end(), of_layer.begin(), of_layer.end());
    }
    partial_pages = partial_pages_;
  }
  std::span<const AttentionSegment> segments;
  if (kv_step_.same_in_set(set)) segments = kv_step_.all_segments(first);
  SegmentTables& tables = tables_[set];
  tables = ops_->make_tables(segments, slots,
                             {partial_pages, kv_step_.new_tokens().full_blocks(first).blocks},
                             kv_step_.view(first), stream);
  kv_step_.set_tables(set, &tables);
}

void DecoderAttention::announce_choices(const Heads& heads, Stream& stream) {
  LayerId layer(0);
  while (layer.value < config_->layers &&
         runner_->timing(layer) == AttentionMethod::Timing::kDense) {
    layer = LayerId(layer.value + 1);
  }
  if (layer.value == config_->layers) return;
  for (std::int64_t group = 0; group < kv_step_.groups(); ++group) {
    const KvStep::Group part = kv_step_.announced(layer, group);
    runner_->announce({layer, part.segments, part.sequences, heads.q, heads.v, kv_step_.view(layer),
                       scale().factor, &stream});
  }
}

void DecoderAttention::announce_dense(const Heads& heads, Matrix attended, Stream& stream) {
  if (!kv_step_.same_in_every_layer()) return;
  const std::span<const AttentionSegment> segments = kv_step_.read(LayerId(0), 0).segments;
  if (segments.empty()) return;
  ops_->attention(heads.q, config_->heads, kv_step_.view(LayerId(0)), segments, scale(), attended,
                  {}, stream);
}

void DecoderAttention::begin_layers(Stream& stream) {
  if (runner_ && runner_->method().chooses_early()) {
    const TraceSpan span(trace_, TraceLane::kCompute, "choose");
    runner_->choose_ahead(rows_, false, stream);
  }
  kv_step_.begin_staging();
  if (host_attention_) host_attention_->begin(*store_, rows_, kv_step_);
}

void DecoderAttention::projected() {
  if (runner_) runner_->projected();
}

void DecoderAttention::finish() {
  if (host_attention_) host_attention_->finish();
}

ScoreScale DecoderAttention::scale(const float* sinks) const {
  return {static_cast<float>(config_->attention.score_scale.value_or(
              1.0 / std::sqrt(static_cast<double>(config_->head_dim)))),
          static_cast<float>(config_->attention.score_cap), sinks};
}

DType DecoderAttention::attended_type(std::int64_t layer, const LayerWeights& w) const {
  // The host attends in F32.
  if (!decodes_ || host_attention_) return DType::kF32;
  return ops_->attended_type(w.attention_out, kv_step_.view(LayerId(layer)));
}

void DecoderAttention::attend(std::int64_t layer, const LayerWeights& w, const Heads& heads,
                              Matrix attended, bool wanted, Stream& stream) {
  const KvLayerView cache = append_kv(layer, heads, stream);
  const ScoreScale scale = this->scale(w.sinks);
  if (host_attention_) host_attention_->send(LayerId(layer), heads.q, w.sinks);
  for (std::int64_t group = 0; group < kv_step_.groups(); ++group) {
    const KvStep::Group part = wait_for_kv(layer, group);
    recompute(layer, w, part.recomputes, part.listed_recomputes, cache, stream);
    const Workspace workspace{workspace_.data(), workspace_.bytes()};
    const AttentionRunner::Rows rows{LayerId(layer), part.segments, part.sequences, heads.q,
                                     heads.v,        cache,         scale,          &stream};
    Selection chosen;
    if (runner_) chosen = choose(rows, group, part, w);
    const TraceSpan span(trace_, TraceLane::kCompute, "attend", wanted || runner_ != nullptr);
    if (runner_) {
      runner_->attend(rows, chosen, attended, wanted, *ops_, workspace);
    } else if (wanted && !part.segments.empty()) {
      ops_->attention(heads.q, config_->heads, cache, part.segments, scale, attended, workspace,
                      stream);
    }
    kv_step_.done(group);
  }
  if (host_attention_ && host_attention_->active()) {
    const TraceSpan span(trace_, TraceLane::kCompute, "attend on host");
    host_attention_->attend(LayerId(layer), windows_[layer], scale, attended, stream);
  }
}

KvLayerView DecoderAttention::append_kv(std::int64_t layer, const Heads& heads, Stream& stream) {
  const TraceSpan span(trace_, TraceLane::kCompute, "append");
  // Those of the first layer are asked for once.
  const bool known = layer == 0 && first_slots_.has_value();
  const KvSlots slots = known ? *first_slots_ : kv_step_.new_tokens().slots(LayerId(layer));
  const KvLayerView cache = kv_step_.view(LayerId(layer));
  if (const std::optional<std::size_t> rope = ropes_->of(layer)) {
    ops_->rope_and_append(heads.q, config_->heads, heads.k, heads.v,
                          ropes_->tables()[*rope].rotary_dim(), angles_[*rope], slots, cache,
                          stream);
  } else {
    ops_->kv_append(heads.k, heads.v, slots, cache, stream);
  }
  const FullBlocks full_blocks = kv_step_.new_tokens().full_blocks(LayerId(layer));
  if (!full_blocks.blocks.empty()) ops_->quantize_blocks(full_blocks, cache, stream);
  return cache;
}

KvStep::Group DecoderAttention::wait_for_kv(std::int64_t layer, std::int64_t group) {
  TraceSpan span(trace_, TraceLane::kCompute, "wait for KV", kv_step_.staging());
  span.note("group", group);
  KvStep::Group part = kv_step_.read(LayerId(layer), group);
  if (part.prefetched_blocks > 0) span.note("blocks_for_next_step", part.prefetched_blocks);
  return part;
}

Selection DecoderAttention::choose(const AttentionRunner::Rows& rows, std::int64_t group,
                                   const KvStep::Group& part, const LayerWeights& w) {
  Selection chosen;
  {
    const TraceSpan span(trace_, TraceLane::kCompute, "choose", !runner_->method().chooses_early());
    chosen = runner_->choose(rows, part.looked_up);
  }
  if (!part.looks_up || part.looked_up != nullptr) return chosen;
  TokenLookup::Found found;
  {
    TraceSpan span(trace_, TraceLane::kCompute, "wait for KV");
    span.note("group", group);
    found = kv_step_.look_up(rows.layer, group, chosen);
  }
  recompute(rows.layer.value, w, {}, found.recomputed, rows.cache, *rows.stream);
  return found.lists;
}

void DecoderAttention::recompute(std::int64_t layer, const LayerWeights& w,
                                 std::span<const KvRecompute> blocks,
                                 const RecomputedTokens& listed, const KvLayerView& cache,
                                 Stream& stream) {
  if (blocks.empty() && listed.most == 0) return;
  TRIPHASE_CHECK(inputs_ != nullptr, "recomputable blocks have cached hidden states");
  TraceSpan span(trace_, TraceLane::kRecompute, "recompute");
  // How many tokens a GPU has listed the host does not know.
  if (listed.most == 0) span.note("tokens", std::ssize(blocks) * cache.page_tokens);
  if (!blocks.empty()) inputs_->recompute(LayerId(layer), w, blocks, cache, stream);
  if (listed.most > 0) inputs_->recompute(LayerId(layer), w, listed, cache, stream);
}

}  // namespace triphase
