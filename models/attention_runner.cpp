#include "models/attention_runner.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/sizing/ops_scratch.h"
#include "kernels/sizing/sparse_workspace.h"
#include "scheduler/attention/attended_shares.h"

namespace triphase {

namespace {

// Of a step's rows (AttentionSegment::log_sums).
std::uint64_t log_sum_bytes(const AttentionShape& largest) {
  return static_cast<std::uint64_t>(largest.max_query_rows * largest.heads) * sizeof(float);
}

}  // namespace

MethodShape method_shape(const ModelConfig& config) {
  MethodShape shape{.layers = config.layers,
                    .heads = config.heads,
                    .kv_heads = config.kv_heads,
                    .head_dim = config.head_dim};
  if (config.sliding_window.empty() || config.window_of_every_layer() > 0) return shape;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.window(layer) == 0) shape.in_model.push_back(layer);
  }
  shape.layers = std::ssize(shape.in_model);
  return shape;
}

double dense_layer_share(const AttentionOptions& options, const MethodShape& shape) {
  const std::int64_t leading = dense_layers(options);
  std::int64_t dense = 0;
  while (dense < shape.layers && shape.model_layer(dense) < leading) ++dense;
  return static_cast<double>(dense) / static_cast<double>(std::max<std::int64_t>(shape.layers, 1));
}

AttentionRunner::AttentionRunner(const AttentionOptions& options, const MethodShape& shape,
                                 SparseOps& ops, const AttentionShape& largest, MemoryPool& pool,
                                 const ContextClusters* clusters)
    : memory_(pool, MemoryTag::kSelection, PoolDevice::Released::kReused),
      score_memory_(pool, MemoryTag::kSelection),
      shape_(shape),
      method_(make_attention_method(options, shape, clusters)),
      ops_(&ops),
      workspace_(pool.allocate(sparse_workspace_bytes(largest), MemoryTag::kWorkspace)),
      log_sums_(pool.allocate(log_sum_bytes(largest), MemoryTag::kWorkspace)),
      prompts_(triphase::prompt_units(options, clusters == nullptr ? 0 : clusters->context_tokens)),
      reader_(pool.device()) {}

std::uint64_t AttentionRunner::workspace_bytes(const AttentionShape& largest) {
  return sparse_workspace_bytes(largest) + log_sum_bytes(largest);
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens, std::int64_t longest) {
  begin(sequence, prompt_tokens, method_->begin(prompt_tokens, longest));
}

void AttentionRunner::begin(SequenceId sequence, std::int64_t prompt_tokens,
                            std::unique_ptr<AttentionMethod::State> state) {
  states_[sequence.value] = {.state = std::move(state), .prompt_tokens = prompt_tokens};
}

void AttentionRunner::end(SequenceId sequence) { states_.erase(sequence.value); }

std::int64_t AttentionRunner::method_layer(LayerId layer) const {
  if (shape_.in_model.empty()) return layer.value;
  const auto found = std::ranges::lower_bound(shape_.in_model, std::int64_t{layer.value});
  const bool there = found != shape_.in_model.end() && *found == layer.value;
  return there ? found - shape_.in_model.begin() : -1;
}

AttentionRunner::Entry& AttentionRunner::entry_of(SequenceId sequence) {
  const auto found = states_.find(sequence.value);
  TRIPHASE_CHECK(found != states_.end(), "a sequence the attention method does not know");
  return found->second;
}

std::int64_t AttentionRunner::shareable_tokens(std::int64_t prompt_tokens) const {
  return method_->shareable_tokens(prompt_tokens, prompt_units());
}

AttendedShape AttentionRunner::byte_shape() const {
  return {shape_.heads, shape_.kv_heads, shape_.head_dim, element_bytes_};
}

void AttentionRunner::count(std::int64_t attended, std::int64_t context, bool chosen) {
  token_counts_.context += static_cast<double>(context);
  token_counts_.rows += 1.0;
  token_counts_.attended += static_cast<double>(attended);
  const AttendedShape shape = byte_shape();
  const AttentionOptions dense;
  read_bytes_.attended += static_cast<double>(
      attended_bytes(chosen ? method_->options() : dense, shape, context, attended));
  read_bytes_.dense += static_cast<double>(attended_bytes(dense, shape, context, context));
}

AttentionRunner::TokenCounts AttentionRunner::token_counts() const {
  TokenCounts all = token_counts_;
  if (stream_ == nullptr || !method_->counts_on_device()) return all;
  const ClusterCounts counted = method_->counted(*stream_);
  const auto lists = static_cast<double>(method_->lists());
  all.attended += static_cast<double>(counted.tokens) / lists;
  all.prompt_attended += static_cast<double>(counted.prompt_tokens) / lists;
  all.centroids += static_cast<double>(counted.centroids);
  return all;
}

AttentionRunner::ReadBytes AttentionRunner::read_bytes() const {
  ReadBytes all = read_bytes_;
  if (stream_ == nullptr || !method_->counts_on_device()) return all;
  // Each token and centroid that the device counted costs the same in any row.
  const ClusterCounts counted = method_->counted(*stream_);
  AttendedShape shape = byte_shape();
  shape.centroids = static_cast<std::int64_t>(counted.centroids);
  const auto tokens = static_cast<std::int64_t>(counted.tokens) / method_->lists();
  all.attended +=
      static_cast<double>(attended_bytes(method_->options(), shape, /*context=*/0, tokens));
  return all;
}

std::int64_t AttentionRunner::first_key_to_choose(LayerId layer, SequenceId sequence,
                                                  std::int64_t context_tokens, bool quantized,
                                                  std::int64_t page_tokens) {
  if (timing(layer) != AttentionMethod::Timing::kLate) return 0;
  const Entry& entry = entry_of(sequence);
  if (context_tokens <= entry.prompt_tokens) return 0;
  LayerCall call;
  call.layer = method_layer(layer);
  call.keys.query_count = 1;
  call.keys.context_tokens = context_tokens;
  call.cache.page_tokens = page_tokens;
  if (quantized) call.cache.dtype = DType::kInt8;
  return method_->first_key(*entry.state, call);
}

LayerCall AttentionRunner::call_of(const Rows& rows) {
  memory_.work_on(*rows.stream);
  return {.layer = method_layer(rows.layer),
          .cache = rows.cache,
          .scale = rows.scale,
          .ops = ops_,
          .memory = &memory_,
          .workspace = {workspace_.data(), workspace_.bytes()},
          .stream = rows.stream};
}

bool AttentionRunner::chooses(SequenceId sequence, std::int64_t context_tokens) {
  if (!decodes(sequence, context_tokens)) return false;
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

void AttentionRunner::choose_ahead(std::span<const BatchSegment> rows, bool announces,
                                   Stream& stream) {
  add_scores(false);
  if (!method_->chooses_early()) return;
  chosen_states_.clear();
  chosen_segments_.clear();
  for (const BatchSegment& row : rows) {
    const std::int64_t context = row.first_position + row.count;
    Entry& entry = entry_of(row.sequence);
    if (context <= entry.prompt_tokens || method_->attends_all(0, context)) continue;
    entry.row_ahead = std::ssize(chosen_states_);
    chosen_states_.push_back(entry.state.get());
    chosen_segments_.emplace_back().context_tokens = context;
  }
  rows_ahead_ = std::ssize(chosen_states_);
  if (rows_ahead_ == 0) return;
  const LayerCall call = call_of({.layer = last_layer(), .scale = 1.0F, .stream = &stream});
  if (announces) return method_->announce_ahead(chosen_sequences(), call);
  ahead_ = method_->choose_ahead(chosen_sequences(), call);
  ahead_.same_counts_in_step = true;
}

Selection AttentionRunner::chosen_ahead(LayerId layer, SequenceId first, std::int64_t rows) {
  const std::int64_t row = entry_of(first).row_ahead;
  TRIPHASE_CHECK(row >= 0 && row + rows <= rows_ahead_, "rows that were chosen for ahead");
  const std::int64_t of_layer =
      method_->layers_ahead() == 1 ? 0 : method_layer(layer) * rows_ahead_;
  return ahead_.part(of_layer + row, rows);
}

Selection AttentionRunner::choose(const LayerCall& call, ConstMatrix q) {
  Selection chosen;
  if (prompts_.choosing().empty()) {
    chosen = method_->choose(chosen_sequences(), call, q);
  } else {
    prompt_lists_ = method_->choose_with_prompts(chosen_sequences(), prompts_.choosing(), call, q);
    chosen = prompt_lists_.part(0, std::ssize(chosen_));
    token_counts_.prompt_context += prompts_.context_tokens();
  }
  chosen.all_from = -1;
  chosen.same_counts_in_step = !method_->counts_on_device();
  return chosen;
}

Selection AttentionRunner::choose(const Rows& rows, const Selection* looked_up) {
  add_scores(false);
  stream_ = rows.stream;
  element_bytes_ = static_cast<std::int64_t>(dtype_bytes(rows.cache.dtype));
  if (method_layer(rows.layer) < 0) {
    show_windows(rows);
    return {};
  }
  row_of_.assign(rows.segments.size(), -1);
  chosen_.clear();
  dense_.clear();
  prompts_.begin_layer();
  states_of_.clear();
  for (const SequenceId sequence : rows.sequences) {
    states_of_.push_back(entry_of(sequence).state.get());
  }
  LayerCall call = call_of(rows);
  tell_appended(rows, call);
  chosen_states_.clear();
  chosen_segments_.clear();
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    call.keys = rows.segments[index];
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t prompt = entry_of(rows.sequences[index]).prompt_tokens;
    if (context <= prompt) {
      if (prompt_units().rows > 0) prompts_.add(call.keys, prompt, rows.q.rows, dense_);
      continue;
    }
    TRIPHASE_CHECK(call.keys.query_count == 1, "decoded rows come one at a time");
    if (method_->attends_all(call.layer, context)) {
      count(context, context, false);
      continue;
    }
    row_of_[index] = std::ssize(chosen_);
    chosen_.push_back(index);
    chosen_states_.push_back(states_of_[index]);
    chosen_segments_.push_back(rows.segments[index]);
    count(method_->counts_on_device() ? 0 : method_->list_tokens(context, prompt), context, true);
  }
  Selection selection;
  if (looked_up != nullptr) {
    TRIPHASE_CHECK(looked_up->rows == std::ssize(chosen_), "a choice ahead for each decoded row");
    selection = *looked_up;
  } else if (!chosen_.empty() && method_->chooses_early()) {
    const SequenceId first = rows.sequences[chosen_.front()];
    selection = chosen_ahead(rows.layer, first, std::ssize(chosen_));
    const SequenceId last = rows.sequences[chosen_.back()];
    TRIPHASE_CHECK(entry_of(last).row_ahead - entry_of(first).row_ahead == selection.rows - 1,
                   "rows in the order in which they were chosen for");
  } else if (!chosen_.empty() || !prompts_.choosing().empty()) {
    selection = choose(call, rows.q);
  }
  if (observer_ != nullptr) show(call, rows, selection);
  return selection;
}

void AttentionRunner::show_windows(const Rows& rows) {
  LayerCall call = call_of(rows);
  call.layer = rows.layer.value;
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    const AttentionSegment& keys = rows.segments[index];
    const std::int64_t context = keys.context_tokens;
    if (!decodes(rows.sequences[index], context)) continue;
    const std::int64_t attended = keys.window > 0 ? std::min(keys.window, context) : context;
    count(attended, context, false);
    if (observer_ == nullptr) continue;
    TokenChoice choice{.dense = attended == context};
    if (!choice.dense) {
      choice.tokens.resize(static_cast<std::size_t>(attended));
      std::iota(choice.tokens.begin(), choice.tokens.end(),
                static_cast<std::int32_t>(context - attended));
      choice.begins = {0, static_cast<std::int32_t>(attended)};
    }
    call.keys = keys;
    observer_->decoded(rows.sequences[index], call, rows.q, keys.query_begin, choice);
  }
}

void AttentionRunner::show(const LayerCall& call, const Rows& rows, const Selection& selection) {
  static const TokenChoice kAll{.dense = true};
  std::span<const TokenChoice> chosen;
  if (!chosen_.empty()) chosen = reader_.read(selection, shape_.heads, *call.stream);
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    if (!decodes(rows.sequences[index], rows.segments[index].context_tokens)) continue;
    LayerCall own = call;
    own.layer = shape_.model_layer(call.layer);
    own.keys = rows.segments[index];
    const std::int64_t row = row_of_[index];
    observer_->decoded(rows.sequences[index], own, rows.q, own.keys.query_begin,
                       row < 0 ? kAll : chosen[row]);
  }
}

void AttentionRunner::tell_appended(const Rows& rows, LayerCall call) {
  const auto continues = [&](std::size_t index) {
    return index > 0 && rows.sequences[index] == rows.sequences[index - 1];
  };
  std::size_t most = 0;  // segments of one sequence, less one
  for (std::size_t index = 0, own = 0; index < rows.segments.size(); ++index) {
    own = continues(index) ? own + 1 : 0;
    most = std::max(most, own);
  }
  // The last launch stored V, but did not make it.
  call.beside = true;
  if (most == 0) return method_->appended({states_of_, rows.segments}, call, rows.v);
  // INT8 cuts a prompt's rows by block. A call's sequences differ, so each part has a call.
  for (std::size_t part = 0; part <= most; ++part) {
    chosen_states_.clear();
    chosen_segments_.clear();
    for (std::size_t index = 0, own = 0; index < rows.segments.size(); ++index) {
      own = continues(index) ? own + 1 : 0;
      if (own != part) continue;
      chosen_states_.push_back(states_of_[index]);
      chosen_segments_.push_back(rows.segments[index]);
    }
    method_->appended(chosen_sequences(), call, rows.v);
    call.beside = false;
  }
}

void AttentionRunner::announce(const Rows& rows) {
  states_of_.clear();
  chosen_states_.clear();
  chosen_segments_.clear();
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    const std::int64_t context = rows.segments[index].context_tokens;
    const Entry& entry = entry_of(rows.sequences[index]);
    if (context <= entry.prompt_tokens) return;
    states_of_.push_back(entry.state.get());
    if (method_->attends_all(method_layer(rows.layer), context)) continue;
    chosen_states_.push_back(entry.state.get());
    chosen_segments_.push_back(rows.segments[index]);
  }
  if (rows.segments.empty()) return;
  method_->announce({states_of_, rows.segments}, chosen_sequences(), call_of(rows), rows.q, rows.v);
}

AttendedScores AttentionRunner::scores_for(const Selection& chosen, Stream& stream) {
  const std::int64_t heads = shape_.heads;
  if (attended_floats(chosen.rows, heads, chosen.capacity) > scores_.size()) {
    // The old scores are freed first, once nothing reads them: the budget has no room for both.
    stream.synchronize();
    scores_ = DeviceFloats();
    scores_ = {attended_floats(chosen.rows, heads, roomy_list_capacity(chosen.capacity)),
               score_memory_};
  }
  float* const softmax = scores_.data();
  return {.values = softmax + attended_floats(chosen.rows, heads, 0), .softmax = softmax};
}

void AttentionRunner::attend(const Rows& rows, const Selection& chosen, Matrix out, bool wanted,
                             Ops& ops, Workspace dense) {
  const bool has_window = method_layer(rows.layer) < 0;
  const bool attends = wanted || (!has_window && prompt_log_sums() != nullptr);
  if (attends && has_window) {
    ops.attention(rows.q, shape_.heads, rows.cache, rows.segments, rows.scale, out, dense,
                  *rows.stream);
  } else if (attends) {
    attend_chosen(rows, chosen, out, ops, dense);
  }
  prompt_states_.clear();
  prompt_segments_.clear();
  LayerCall call = call_of(rows);
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    if (decodes(rows.sequences[index], rows.segments[index].context_tokens)) continue;
    prompt_states_.push_back(entry_of(rows.sequences[index]).state.get());
    prompt_segments_.push_back(rows.segments[index]);
    prompt_segments_.back().log_sums = prompt_log_sums();
  }
  if (!has_window && !prompt_states_.empty()) {
    method_->prefilled({prompt_states_, prompt_segments_}, call, rows.q);
  }
  if (observer_ == nullptr) return;
  call.layer = rows.layer.value;
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    if (decodes(rows.sequences[index], rows.segments[index].context_tokens)) continue;
    call.keys = rows.segments[index];
    observer_->prefilled(rows.sequences[index], call, rows.q);
  }
}

void AttentionRunner::attend_chosen(const Rows& rows, const Selection& chosen, Matrix out, Ops& ops,
                                    Workspace dense) {
  TRIPHASE_CHECK(row_of_.size() == rows.segments.size(), "segments that were chosen for");
  sparse_.clear();
  const bool wants_scores = method_->wants_scores() && !chosen_.empty();
  Selection attended = chosen;
  if (wants_scores) attended.scores = scores_for(chosen, *rows.stream);
  for (std::size_t index = 0; index < rows.segments.size(); ++index) {
    const std::int64_t row = row_of_[index];
    if (row < 0) {
      // choose() has already counted the dense rows of prompts that choose.
      const bool is_prompt = !decodes(rows.sequences[index], rows.segments[index].context_tokens);
      if (prompt_units().rows == 0 || !is_prompt) {
        dense_.push_back(rows.segments[index]);
        if (is_prompt) dense_.back().log_sums = prompt_log_sums();
      }
      continue;
    }
    AttentionSegment& segment = sparse_.emplace_back(rows.segments[index]);
    TRIPHASE_CHECK(segment.window == 0, "tokens are chosen in whole contexts");
    segment.chosen = &attended;
    segment.chosen_row = row;
  }
  for (const AttentionSegment& part : prompts_.parts()) {
    AttentionSegment& segment = sparse_.emplace_back(part);
    segment.chosen = &prompt_lists_;
    segment.chosen_row += std::ssize(chosen_);
  }
  const auto attend = [&](std::span<const AttentionSegment> part) {
    if (part.empty()) return;
    ops.attention(rows.q, shape_.heads, rows.cache, part, rows.scale, out, dense, *rows.stream);
  };
  attend(dense_);
  attend(sparse_);
  if (wants_scores) scored_ = {call_of(rows), attended};
}

void AttentionRunner::add_scores(bool beside) {
  if (!scored_) return;
  scored_->call.beside = beside;
  method_->attended(chosen_sequences(), scored_->call, scored_->lists);
  scored_.reset();
}

}  // namespace triphase
