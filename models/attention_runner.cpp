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
      reader_(pool.device()) {}

std::uint64_t AttentionRunner::workspace_bytes(const AttentionShape& largest) {
  return sparse_workspace_bytes(largest);
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens, std::int64_t longest) {
  begin(sequence, prompt_tokens, method_->begin(prompt_tokens, longest));
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens,
                            std::unique_ptr<AttentionMethod::State> state) {
  states_[sequence.value] = {std::move(state), prompt_tokens, {}, {}};
}

void AttentionRunner::end(SequenceId sequence) { states_.erase(sequence.value); }

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
  TRIPHASE_CHECK(stream_ != nullptr, "a choice before the first step");
  AttentionSegment keys;
  keys.context_tokens = context_tokens;
  call = call_of(layer, keys, {}, 1.0F, *stream_);
  return &entry;
}

void AttentionRunner::begin_step(std::span<const BatchSegment> segments, Stream& stream) {
  early_rows_.clear();
  early_states_.clear();
  early_segments_.clear();
  stream_ = &stream;
  chosen_early_ = false;
  if (!chooses_rows() || !method_->chooses_early()) return;
  for (const BatchSegment& rows : segments) {
    const std::int64_t context = rows.first_position + 1;
    Entry& entry = entry_of(rows.sequence);
    if (rows.count != 1 || context <= entry.prompt_tokens || method_->attends_all(0, context)) {
      continue;
    }
    early_rows_[rows.sequence.value] = {static_cast<std::int64_t>(early_states_.size()), context};
    early_states_.push_back(entry.state.get());
    early_segments_.emplace_back().context_tokens = context;
  }
}

void AttentionRunner::choose_early() {
  chosen_early_ = true;
  Stream& stream = *stream_;
  while (early_readers_.size() < static_cast<std::size_t>(shape_.layers)) {
    early_readers_.emplace_back(memory_);
  }
  for (LayerId layer(0); layer.value < shape_.layers; layer = LayerId(layer.value + 1)) {
    const Selection chosen = method_->choose_rows({early_states_, early_segments_},
                                                  call_of(layer, {}, {}, 1.0F, stream), {});
    early_readers_[layer.index()].begin(chosen, shape_.heads, stream);
  }
  stream.synchronize();
  for (SelectionReader& reader : early_readers_) static_cast<void>(reader.finish());
}

const TokenChoice* AttentionRunner::chosen_early(LayerId layer, SequenceId sequence,
                                                 std::int64_t context_tokens) {
  const auto found = early_rows_.find(sequence.value);
  if (found == early_rows_.end()) return nullptr;
  TRIPHASE_CHECK(found->second.context_tokens == context_tokens, "a row of the step at hand");
  if (!chosen_early_) choose_early();
  return &early_readers_[layer.index()].choices()[static_cast<std::size_t>(found->second.row)];
}

const TokenChoice* AttentionRunner::early_choice(LayerId layer, SequenceId sequence,
                                                 std::int64_t context_tokens) {
  LayerCall call;
  Entry* entry = early_entry(layer, sequence, context_tokens, call);
  if (entry == nullptr) return nullptr;
  if (chooses_rows()) return chosen_early(layer, sequence, context_tokens);
  const TokenChoice& choice = choose(*entry, call, {}, 0);
  return choice.dense ? nullptr : &choice;
}

const TokenChoice* AttentionRunner::next_choice(LayerId layer, SequenceId sequence,
                                                std::int64_t context_tokens) {
  // Of rows that are chosen for together the positions are read once a step.
  if (chooses_rows()) return nullptr;
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

void AttentionRunner::count(double attended, std::int64_t context) {
  touched_.context += static_cast<double>(context);
  touched_.rows += 1.0;
  touched_.attended += attended;
}

AttentionRunner::Touched AttentionRunner::touched() const {
  Touched all = touched_;
  if (stream_ == nullptr || !method_->counts_on_device()) return all;
  const ClusterCounts counted = method_->counted(*stream_);
  all.attended += static_cast<double>(counted.tokens) / static_cast<double>(method_->lists());
  all.centroids += static_cast<double>(counted.centroids);
  return all;
}

AttentionRunner::ReadBytes AttentionRunner::read_bytes(std::int64_t element_bytes) const {
  const Touched all = touched();
  if (all.rows == 0.0) return {};
  const auto mean = [&](double sum) { return static_cast<std::int64_t>(sum / all.rows); };
  const AttendedShape shape{shape_.heads, shape_.kv_heads, shape_.head_dim, element_bytes,
                            mean(all.centroids)};
  const std::int64_t context = mean(all.context);
  const auto bytes = [&](const AttentionOptions& options, std::int64_t attended) {
    return all.rows * static_cast<double>(attended_bytes(options, shape, context, attended));
  };
  return {bytes(method_->options(), mean(all.attended)), bytes(AttentionOptions{}, context)};
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

bool AttentionRunner::chooses_on_device(SequenceId sequence, std::int64_t context_tokens) {
  if (memory_.runs_at_once() || observer_ != nullptr || !chooses_rows()) return false;
  if (context_tokens <= entry_of(sequence).prompt_tokens) return false;
  bool chooses = false;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    if (method_->timing(layer) == AttentionMethod::Timing::kDense) continue;
    if (method_->attends_all(layer, context_tokens)) return false;
    chooses = true;
  }
  return chooses;
}

std::int64_t AttentionRunner::list_tokens(SequenceId sequence, std::int64_t context_tokens) {
  return method_->list_tokens(context_tokens, entry_of(sequence).prompt_tokens);
}

Selection AttentionRunner::choose_ahead(LayerId layer, std::span<const BatchSegment> rows,
                                        Stream& stream) {
  late_states_.clear();
  late_segments_.clear();
  for (const BatchSegment& row : rows) {
    late_states_.push_back(entry_of(row.sequence).state.get());
    late_segments_.emplace_back().context_tokens = row.first_position + 1;
  }
  return method_->choose_rows(late_sequences(), call_of(layer, {}, {}, 1.0F, stream), {});
}

std::span<const TokenChoice* const> AttentionRunner::choose(
    LayerId layer, std::span<const AttentionSegment> segments,
    std::span<const SequenceId> sequences, ConstMatrix q, ConstMatrix v, const KvLayerView& cache,
    float scale, const ChoiceUse& use, Stream& stream) {
  choices_.assign(segments.size(), nullptr);
  late_rows_.assign(segments.size(), -1);
  late_.clear();
  dense_.clear();
  prompts_.begin_layer();
  states_of_.clear();
  for (const SequenceId sequence : sequences) {
    states_of_.push_back(entry_of(sequence).state.get());
  }
  LayerCall call = call_of(layer, {}, cache, scale, stream);
  tell_appended(segments, sequences, call, v);
  for (std::size_t index = 0; index < segments.size(); ++index) {
    call.keys = segments[index];
    const Entry& entry = entry_of(sequences[index]);
    if (call.keys.context_tokens <= entry.prompt_tokens) {
      if (prompt_units().rows > 0) choose_for_prompt(call, entry.prompt_tokens, q);
      continue;
    }
    TRIPHASE_CHECK(call.keys.query_count == 1, "decoded rows come one at a time");
    if (chooses_rows() && !method_->attends_all(layer.value, call.keys.context_tokens)) {
      late_rows_[index] = static_cast<std::int64_t>(late_.size());
      late_.push_back(index);
    } else {
      choose_row(index, sequences[index], call, q);
    }
  }
  choose_rows(call, segments, sequences, q, use);
  return choices_;
}

void AttentionRunner::tell_appended(std::span<const AttentionSegment> segments,
                                    std::span<const SequenceId> sequences, const LayerCall& call,
                                    ConstMatrix v) {
  const auto continues = [&](std::size_t index) {
    return index > 0 && sequences[index] == sequences[index - 1];
  };
  std::size_t most = 0;  // segments of one sequence, less one
  for (std::size_t index = 0, own = 0; index < segments.size(); ++index) {
    own = continues(index) ? own + 1 : 0;
    most = std::max(most, own);
  }
  if (most == 0) return method_->appended({states_of_, segments}, call, v);
  // INT8 cuts a prompt's rows by block. A call's sequences differ, so each part has a call.
  for (std::size_t part = 0; part <= most; ++part) {
    late_states_.clear();
    late_segments_.clear();
    for (std::size_t index = 0, own = 0; index < segments.size(); ++index) {
      own = continues(index) ? own + 1 : 0;
      if (own != part) continue;
      late_states_.push_back(states_of_[index]);
      late_segments_.push_back(segments[index]);
    }
    method_->appended(late_sequences(), call, v);
  }
}

void AttentionRunner::choose_row(std::size_t index, SequenceId sequence, const LayerCall& call,
                                 ConstMatrix q) {
  static const TokenChoice kAll = [] {
    TokenChoice all;
    all.clear();
    all.dense = true;
    return all;
  }();
  const std::int64_t context = call.keys.context_tokens;
  const TokenChoice& choice =
      chooses_rows() ? kAll : choose(entry_of(sequence), call, q, call.keys.query_begin);
  const double lists = static_cast<double>(choice.begins.size()) - 1.0;
  count(choice.dense ? static_cast<double>(context)
                     : static_cast<double>(choice.tokens.size()) / lists,
        context);
  if (observer_ != nullptr) {
    observer_->decoded(sequence, call, q, call.keys.query_begin, choice);
  }
  if (!choice.dense) choices_[index] = &choice;
}

void AttentionRunner::choose_rows(const LayerCall& call, std::span<const AttentionSegment> segments,
                                  std::span<const SequenceId> sequences, ConstMatrix q,
                                  const ChoiceUse& use) {
  late_states_.clear();
  late_segments_.clear();
  if (late_.empty()) return;
  for (const std::size_t index : late_) {
    late_states_.push_back(states_of_[index]);
    late_segments_.push_back(segments[index]);
    const std::int64_t context = segments[index].context_tokens;
    const std::int64_t prompt = entry_of(sequences[index]).prompt_tokens;
    const std::int64_t tokens =
        method_->counts_on_device() ? 0 : method_->list_tokens(context, prompt);
    count(static_cast<double>(tokens), context);
  }
  if (use.ahead != nullptr) {
    TRIPHASE_CHECK(use.ahead->rows == static_cast<std::int64_t>(late_.size()),
                   "a choice ahead for each decoded row");
    selection_ = *use.ahead;
    on_device_ = true;
    return;
  }
  selection_ = method_->choose_rows(late_sequences(), call, q);
  on_device_ = !memory_.runs_at_once() && !use.fetches && !chosen_early_ && observer_ == nullptr;
  if (on_device_) return;
  std::span<const TokenChoice> read;
  if (!chosen_early_) read = reader_.read(selection_, shape_.heads, *call.stream);
  for (std::size_t row = 0; row < late_.size(); ++row) {
    const SequenceId sequence = sequences[late_[row]];
    choices_[late_[row]] = chosen_early_ ? chosen_early(LayerId(call.layer), sequence,
                                                        late_segments_[row].context_tokens)
                                         : &read[row];
    if (observer_ == nullptr) continue;
    LayerCall own = call;
    own.keys = late_segments_[row];
    observer_->decoded(sequence, own, q, own.keys.query_begin, *choices_[late_[row]]);
  }
}

void AttentionRunner::announce(LayerId layer, std::span<const AttentionSegment> segments,
                               std::span<const SequenceId> sequences, ConstMatrix q, ConstMatrix v,
                               const KvLayerView& cache, float scale, Matrix out, Ops& ops,
                               Stream& stream) {
  if (!chooses_rows()) {
    announce_lists(layer, segments, sequences, q, cache, scale, out, ops, stream);
    return;
  }
  states_of_.clear();
  late_states_.clear();
  late_segments_.clear();
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const std::int64_t context = segments[index].context_tokens;
    const Entry& entry = entry_of(sequences[index]);
    if (context <= entry.prompt_tokens) return;
    states_of_.push_back(entry.state.get());
    if (method_->attends_all(layer.value, context)) continue;
    late_states_.push_back(entry.state.get());
    late_segments_.push_back(segments[index]);
  }
  if (segments.empty()) return;
  method_->announce({states_of_, segments}, late_sequences(),
                    call_of(layer, {}, cache, scale, stream), q, v, out);
}

void AttentionRunner::announce_lists(LayerId layer, std::span<const AttentionSegment> segments,
                                     std::span<const SequenceId> sequences, ConstMatrix q,
                                     const KvLayerView& cache, float scale, Matrix out, Ops& ops,
                                     Stream& stream) {
  sparse_.clear();
  if (chosen_.size() < segments.size()) chosen_.resize(segments.size());
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const TokenChoice* choice =
        early_choice(layer, sequences[index], segments[index].context_tokens);
    if (choice == nullptr) continue;
    std::vector<std::int32_t>& slots = chosen_[index].slots;
    find_slots(segments[index], cache, choice->tokens, {}, slots);
    sparse_.push_back(segments[index]);
    sparse_.back().window = 0;
    sparse_.back().selection = {choice->begins, choice->tokens, slots};
  }
  if (!sparse_.empty()) ops.attention(q, shape_.heads, cache, sparse_, scale, out, {}, stream);
}

void AttentionRunner::make_late_weights(Stream& stream) {
  const std::int64_t needed =
      static_cast<std::int64_t>(late_.size()) * selection_.lists * selection_.capacity;
  if (needed <= late_weights_.size()) return;
  // The old ones go first, once nothing reads them: the budget has no room for both.
  stream.synchronize();
  late_weights_ = DeviceFloats();
  // Contexts grow.
  late_weights_.resize(needed + needed / 8, memory_, stream);
}

void AttentionRunner::attend(LayerId layer, std::span<const AttentionSegment> segments,
                             std::span<const SequenceId> sequences,
                             std::span<const std::span<const std::int32_t>> slots, ConstMatrix q,
                             const KvLayerView& cache, float scale, Matrix out, Ops& ops,
                             Workspace dense, Stream& stream) {
  TRIPHASE_CHECK(choices_.size() == segments.size(), "segments that were chosen for");
  sparse_.clear();
  const bool wants_weights = method_->wants_weights();
  const bool at_once = memory_.runs_at_once();
  const bool weights_stay = wants_weights && chooses_rows();
  TRIPHASE_CHECK(!wants_weights || weights_stay || at_once, "weights that no call would tell of");
  if (weights_stay) make_late_weights(stream);
  const auto keep_weights = [&](AttentionSegment& segment, std::size_t index) {
    segment.weights =
        late_weights_.data() + late_rows_[index] * selection_.lists * selection_.capacity;
    segment.weights_stride = selection_.capacity;
  };
  std::size_t used = 0;
  for (std::size_t index = 0; index < segments.size(); ++index) {
    if (on_device_ && late_rows_[index] >= 0) {
      sparse_.push_back(segments[index]);
      sparse_.back().window = 0;
      sparse_.back().chosen = &selection_;
      sparse_.back().chosen_row = late_rows_[index];
      if (weights_stay) keep_weights(sparse_.back(), index);
      continue;
    }
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
  for (std::size_t i = 0; i < used; ++i) {
    Chosen& chosen = chosen_[i];
    AttentionSegment segment = segments[chosen.segment];
    segment.selection = {chosen.choice->begins, chosen.choice->tokens, chosen.slots};
    segment.window = 0;
    if (wants_weights && !weights_stay) {
      // One at a time: the workspace keeps one sequence's scores.
      chosen.weights.resize(chosen.choice->tokens.size());
      segment.weights = chosen.weights.data();
      ops.attention(q, shape_.heads, cache, {&segment, 1}, scale, out, dense, stream);
      continue;
    }
    if (weights_stay) keep_weights(segment, chosen.segment);
    sparse_.push_back(segment);
  }
  for (const PromptChoices::Part& part : prompts_.parts()) {
    sparse_.push_back(part.segment);
    sparse_.back().selection = {part.begins, part.tokens, part.slots};
  }
  if (!sparse_.empty()) ops.attention(q, shape_.heads, cache, sparse_, scale, out, dense, stream);
  for (std::size_t i = 0; i < used && wants_weights && !weights_stay; ++i) {
    const Chosen& chosen = chosen_[i];
    method_->attended(*entry_of(sequences[chosen.segment]).state,
                      call_of(layer, segments[chosen.segment], cache, scale, stream),
                      *chosen.choice, chosen.weights);
  }
  if (!late_.empty()) {
    const LayerCall call = call_of(layer, {}, cache, scale, stream);
    if (weights_stay) {
      method_->attended_rows(late_sequences(), call, selection_, late_weights_.data());
    }
    method_->finish_rows(late_sequences(), call, selection_, out);
  }
  for (std::size_t index = 0; index < segments.size(); ++index) {
    Entry& entry = entry_of(sequences[index]);
    if (segments[index].context_tokens > entry.prompt_tokens) continue;
    const LayerCall call = call_of(layer, segments[index], cache, scale, stream);
    method_->prefilled(*entry.state, call, q);
    if (observer_ != nullptr) observer_->prefilled(sequences[index], call, q);
  }
}

}  // namespace triphase
