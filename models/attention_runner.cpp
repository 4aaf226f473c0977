#include "models/attention_runner.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "kernels/sizing/sparse_workspace.h"

namespace triphase {

AttentionRunner::AttentionRunner(const AttentionOptions& options, const MethodShape& shape,
                                 SparseOps& ops, const AttentionShape& largest, MemoryPool& pool,
                                 const ContextClusters* clusters)
    : memory_(pool, MemoryTag::kSelection),
      shape_(shape),
      method_(make_attention_method(options, shape, clusters)),
      ops_(&ops),
      workspace_(pool.allocate(workspace_bytes(largest), MemoryTag::kWorkspace)),
      prompts_(triphase::prompt_units(options, clusters == nullptr ? 0 : clusters->context_tokens,
                                      ops.selects_for_several_queries())),
      awaited_rows_(static_cast<std::size_t>(shape.layers), 0),
      weights_arrived_(pool.device().make_event()) {}

std::uint64_t AttentionRunner::workspace_bytes(const AttentionShape& largest) {
  return sparse_workspace_bytes(largest);
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens) {
  begin(sequence, prompt_tokens, method_->begin(prompt_tokens));
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens,
                            std::unique_ptr<AttentionMethod::State> state) {
  settle();
  states_[sequence.value] = {std::move(state), prompt_tokens, {}, {}};
}

void AttentionRunner::end(SequenceId sequence) {
  settle();
  states_.erase(sequence.value);
}

void AttentionRunner::settle() {
  if (awaited_.empty()) return;
  weights_arrived_->synchronize();
  for (Awaited& row : awaited_) {
    method_->attended(*entry_of(row.sequence).state, row.call, row.choice, row.weights);
  }
  awaited_.clear();
  std::ranges::fill(awaited_rows_, 0);
  weights_used_ = 0;
}

void AttentionRunner::settle_for(LayerId layer) {
  if (awaited_rows_[layer.index()] > 0) settle();
}

void AttentionRunner::take_weights(std::size_t rows) {
  // Rows at equal distances: one copy can bring all.
  std::size_t row = 0;
  for (std::size_t i = 0; i < rows; ++i) row = std::max(row, chosen_[i].choice->tokens.size());
  const std::size_t needed = row * rows;
  if (weights_used_ + needed > weights_capacity_) {
    settle();
    weights_used_ = 0;
    // Room for all layers of a step, and for contexts that grow.
    constexpr std::size_t kMost = std::size_t{16} << 20;
    const std::size_t step = 2 * needed * static_cast<std::size_t>(shape_.layers);
    const std::size_t wanted =
        memory_.runs_at_once() ? 2 * needed : std::max(needed, std::min(kMost, step));
    if (wanted > weights_capacity_) {
      weights_ = HostBuffer();
      weights_ = HostBuffer(memory_, wanted * sizeof(float));
      weights_capacity_ = wanted;
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    chosen_[i].weights = {weights_.as<float>() + weights_used_ + i * row,
                          chosen_[i].choice->tokens.size()};
  }
  weights_used_ = memory_.runs_at_once() ? 0 : weights_used_ + needed;
}

AttentionRunner::Entry& AttentionRunner::entry_of(SequenceId sequence) {
  const auto found = states_.find(sequence.value);
  TRIPHASE_CHECK(found != states_.end(), "a sequence the attention method does not know");
  return found->second;
}

std::int64_t AttentionRunner::shareable_tokens(std::int64_t prompt_tokens) const {
  if (method_->needs_every_row()) return 0;
  const std::int64_t rest = prompt_tokens - method_->prefill_rows(prompt_tokens);
  return std::clamp<std::int64_t>(rest, 0, prompt_units().causal_tokens(prompt_tokens));
}

AttentionRunner::Entry* AttentionRunner::early_entry(LayerId layer, SequenceId sequence,
                                                     std::int64_t context_tokens, LayerCall& call) {
  if (method_->timing(layer.value) != AttentionMethod::Timing::kEarly) return nullptr;
  Entry& entry = entry_of(sequence);
  if (context_tokens <= entry.prompt_tokens) return nullptr;
  call.layer = layer.value;
  call.keys.context_tokens = context_tokens;
  return &entry;
}

const TokenChoice* AttentionRunner::early_choice(LayerId layer, SequenceId sequence,
                                                 std::int64_t context_tokens) {
  settle_for(layer);
  LayerCall call;
  Entry* entry = early_entry(layer, sequence, context_tokens, call);
  if (entry == nullptr) return nullptr;
  const TokenChoice& choice = choose(*entry, call, {}, 0);
  return choice.dense ? nullptr : &choice;
}

const TokenChoice* AttentionRunner::next_choice(LayerId layer, SequenceId sequence,
                                                std::int64_t context_tokens) {
  if (!awaited_.empty()) return nullptr;
  LayerCall call;
  Entry* entry = early_entry(layer, sequence, context_tokens, call);
  if (entry == nullptr) return nullptr;
  if (entry->next.empty()) entry->next.resize(static_cast<std::size_t>(2 * shape_.layers));
  Made& made = entry->next_of(call);
  if (!made.is_for(call)) make(*entry, call, {}, 0, made);
  return made.choice.dense ? nullptr : &made.choice;
}

const TokenChoice& AttentionRunner::choose(Entry& entry, const LayerCall& call, ConstMatrix q,
                                           std::int64_t row) {
  if (!entry.next.empty() && entry.next_of(call).is_for(call)) return entry.next_of(call).choice;
  Made& made = entry.made[static_cast<std::size_t>(call.layer) % entry.made.size()];
  if (!made.is_for(call)) make(entry, call, q, row, made);
  return made.choice;
}

void AttentionRunner::make(Entry& entry, const LayerCall& call, ConstMatrix q, std::int64_t row,
                           Made& made) {
  made.layer = call.layer;
  made.context_tokens = call.keys.context_tokens;
  made.choice.clear();
  if (method_->timing(call.layer) == AttentionMethod::Timing::kDense) {
    made.choice.dense = true;
  } else {
    method_->choose(*entry.state, call, q, row, made.choice);
  }
}

// Where a token lies: where it was brought to, in the pages of its block, or with INT8 in the open
// page of the query's own.
void AttentionRunner::find_slots(const AttentionSegment& segment, const KvLayerView& cache,
                                 std::span<const std::int32_t> tokens,
                                 std::span<const std::int32_t> known,
                                 std::vector<std::int32_t>& slots) {
  const std::int64_t page = cache.page_tokens;
  const std::int64_t own = cache.quantized() ? (segment.context_tokens - 1) / page : -1;
  const std::int64_t blocks = (segment.context_tokens + page - 1) / page;
  // A block's tokens are all shifted alike; lists are many, so each block is looked up once.
  constexpr std::int32_t kAbsent = std::numeric_limits<std::int32_t>::min();
  shifts_.assign(static_cast<std::size_t>(blocks), kAbsent);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto index = static_cast<std::size_t>(block);
    const PageId at = block == own                   ? segment.partial_page
                      : index < segment.pages.size() ? segment.pages[index]
                                                     : PageId();
    if (at.valid()) shifts_[index] = static_cast<std::int32_t>((at.value - block) * page);
  }
  slots.resize(tokens.size());
  const auto shift_all = [&](const auto& block_of) {
    bool absent = false;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t shift = shifts_[block_of(static_cast<std::uint32_t>(tokens[i]))];
      const bool brought = !known.empty() && known[i] >= 0;
      absent |= shift == kAbsent && !brought;
      slots[i] = brought ? known[i] : tokens[i] + shift;
    }
    return !absent;
  };
  const auto size = static_cast<std::uint32_t>(page);
  const int bits = std::countr_zero(size);
  TRIPHASE_CHECK(std::has_single_bit(size)
                     ? shift_all([bits](std::uint32_t token) { return token >> bits; })
                     : shift_all([size](std::uint32_t token) { return token / size; }),
                 "a chosen token that is not on the device");
}

void AttentionRunner::choose_for_prompt(const LayerCall& call, std::int64_t prompt_tokens,
                                        ConstMatrix q) {
  const std::size_t before = prompts_.parts().size();
  prompts_.add(*method_, call, prompt_tokens, q, dense_);
  for (PromptChoices::Part& part : prompts_.parts().subspan(before)) {
    find_slots(part.segment, call.cache, part.tokens, {}, part.slots);
    touched_.prompt_attended += PromptChoices::attended_tokens(part);
    touched_.prompt_context += PromptChoices::context_tokens(part);
  }
}

void AttentionRunner::count(const TokenChoice& choice, std::int64_t context) {
  const auto all = static_cast<double>(context);
  touched_.context += all;
  touched_.rows += 1.0;
  touched_.centroids += static_cast<double>(choice.centroids);
  if (choice.dense) {
    touched_.attended += all;
    return;
  }
  const auto lists = static_cast<double>(choice.begins.size() - 1);
  touched_.attended += static_cast<double>(choice.tokens.size()) / lists;
}

AttentionRunner::ReadBytes AttentionRunner::read_bytes(std::int64_t element_bytes) const {
  if (touched_.rows == 0.0) return {};
  const auto mean = [&](double sum) { return static_cast<std::int64_t>(sum / touched_.rows); };
  const AttendedShape shape{shape_.heads, shape_.kv_heads, shape_.head_dim, element_bytes,
                            mean(touched_.centroids)};
  const std::int64_t context = mean(touched_.context);
  const auto bytes = [&](const AttentionOptions& options, std::int64_t attended) {
    return touched_.rows * static_cast<double>(attended_bytes(options, shape, context, attended));
  };
  return {bytes(method_->options(), mean(touched_.attended)), bytes(AttentionOptions{}, context)};
}

std::int64_t AttentionRunner::first_key_to_choose(LayerId layer, SequenceId sequence,
                                                  std::int64_t context_tokens, bool quantized,
                                                  std::int64_t page_tokens) {
  if (method_->timing(layer.value) != AttentionMethod::Timing::kLate) return 0;
  const Entry& entry = entry_of(sequence);
  if (context_tokens <= entry.prompt_tokens) return 0;
  LayerCall call;
  call.layer = layer.value;
  call.keys.query_count = 1;
  call.keys.context_tokens = context_tokens;
  call.cache.page_tokens = page_tokens;
  if (quantized) call.cache.dtype = DType::kInt8;
  return method_->first_key(*entry.state, call);
}

LayerCall AttentionRunner::call_of(LayerId layer, const AttentionSegment& segment,
                                   const KvLayerView& cache, float scale, Stream& stream) {
  return {.layer = layer.value,
          .keys = segment,
          .cache = cache,
          .scale = scale,
          .ops = ops_,
          .memory = &memory_,
          .workspace = {workspace_.data(), workspace_.bytes()},
          .stream = &stream};
}

std::span<const TokenChoice* const> AttentionRunner::choose(
    LayerId layer, std::span<const AttentionSegment> segments,
    std::span<const SequenceId> sequences, ConstMatrix q, ConstMatrix v, const KvLayerView& cache,
    float scale, Stream& stream) {
  settle_for(layer);
  choices_.clear();
  dense_.clear();
  prompts_.begin_layer();
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const AttentionSegment& segment = segments[index];
    Entry& entry = entry_of(sequences[index]);
    const LayerCall call = call_of(layer, segment, cache, scale, stream);
    ConstMatrix rows = v;
    rows.data = static_cast<const float*>(v.data) + segment.query_begin * v.row_stride;
    rows.rows = segment.query_count;
    method_->appended(*entry.state, call, rows);
    choices_.push_back(nullptr);
    if (segment.context_tokens <= entry.prompt_tokens) {
      if (prompt_units().rows > 0) choose_for_prompt(call, entry.prompt_tokens, q);
      continue;
    }
    TRIPHASE_CHECK(segment.query_count == 1, "decoded rows come one at a time");
    const TokenChoice& choice = choose(entry, call, q, segment.query_begin);
    count(choice, segment.context_tokens);
    if (observer_ != nullptr) {
      observer_->decoded(sequences[index], call, q, segment.query_begin, choice);
    }
    if (!choice.dense) choices_.back() = &choice;
  }
  return choices_;
}

void AttentionRunner::attend(LayerId layer, std::span<const AttentionSegment> segments,
                             std::span<const SequenceId> sequences,
                             std::span<const std::span<const std::int32_t>> slots, ConstMatrix q,
                             const KvLayerView& cache, float scale, Matrix out, Ops& ops,
                             Workspace dense, Stream& stream) {
  TRIPHASE_CHECK(choices_.size() == segments.size(), "segments that were chosen for");
  sparse_.clear();
  std::size_t used = 0;
  for (std::size_t index = 0; index < segments.size(); ++index) {
    if (choices_[index] == nullptr) {
      const bool prompt =
          segments[index].context_tokens <= entry_of(sequences[index]).prompt_tokens;
      // Of prompts that choose, choose() has taken what is attended densely.
      if (!prompt || prompt_units().rows == 0) dense_.push_back(segments[index]);
      continue;
    }
    if (chosen_.size() <= used) chosen_.emplace_back();
    Chosen& chosen = chosen_[used];
    chosen.segment = index;
    chosen.choice = choices_[index];
    find_slots(segments[index], cache, chosen.choice->tokens, slots[index], chosen.slots);
    ++used;
  }
  if (!dense_.empty()) ops.attention(q, shape_.heads, cache, dense_, scale, out, dense, stream);
  const bool wants_weights = method_->wants_weights();
  const bool at_once = memory_.runs_at_once();
  if (wants_weights) take_weights(used);
  for (std::size_t i = 0; i < used; ++i) {
    Chosen& chosen = chosen_[i];
    AttentionSegment segment = segments[chosen.segment];
    segment.selection = {chosen.choice->begins, chosen.choice->tokens, chosen.slots};
    segment.window = 0;
    if (wants_weights) segment.weights = chosen.weights.data();
    if (wants_weights && at_once) {
      // One at a time: the workspace keeps one sequence's scores.
      ops.attention(q, shape_.heads, cache, {&segment, 1}, scale, out, dense, stream);
    } else {
      sparse_.push_back(segment);
    }
  }
  for (const PromptChoices::Part& part : prompts_.parts()) {
    sparse_.push_back(part.segment);
    sparse_.back().selection = {part.begins, part.tokens, part.slots};
  }
  if (!sparse_.empty()) ops.attention(q, shape_.heads, cache, sparse_, scale, out, dense, stream);
  for (std::size_t i = 0; i < used; ++i) {
    Chosen& chosen = chosen_[i];
    const AttentionSegment& segment = segments[chosen.segment];
    if (at_once) {
      method_->attended(*entry_of(sequences[chosen.segment]).state,
                        call_of(layer, segment, cache, scale, stream), *chosen.choice,
                        chosen.weights);
    } else if (wants_weights) {
      ++awaited_rows_[layer.index()];
      Awaited& row = awaited_.emplace_back();
      row.sequence = sequences[chosen.segment];
      row.call.layer = layer.value;
      row.call.keys.context_tokens = segment.context_tokens;
      row.choice = *chosen.choice;
      row.weights = chosen.weights;
    }
    blend(*chosen.choice, shape_, *ops_, out, segment.query_begin, stream);
  }
  if (!awaited_.empty()) weights_arrived_->record(stream);
  for (std::size_t index = 0; index < segments.size(); ++index) {
    Entry& entry = entry_of(sequences[index]);
    if (segments[index].context_tokens > entry.prompt_tokens) continue;
    const LayerCall call = call_of(layer, segments[index], cache, scale, stream);
    method_->prefilled(*entry.state, call, q);
    if (observer_ != nullptr) observer_->prefilled(sequences[index], call, q);
  }
}

}  // namespace triphase
