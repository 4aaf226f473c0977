#include "runtime/engine/scorer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "scheduler/batch_planner.h"

namespace triphase {
namespace {

constexpr std::size_t kWaitingPerPlace = 2;

// What may be shared with other tasks: the prefix before the first scored token, as far as it is
// prefilled. KV written in decode depends on the attention method and stays the sequence's own.
std::span<const TokenId> shareable_prefix(const ScoreTask& task) {
  const std::int64_t count =
      std::min({task.first_scored, task.prefill_tokens, task.computed_tokens()});
  return std::span(task.tokens).first(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
}

}  // namespace

bool score_token(std::span<const float> logits, TokenId token, TokenScore& score) {
  float best = -INFINITY;
  bool finite = true;
  std::size_t best_id = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    finite = finite && std::isfinite(logits[id]);
    if (logits[id] > best) {
      best = logits[id];
      best_id = id;
    }
  }
  if (!finite) return false;
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  const double logit = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  // -0.0 would be printed as such.
  score.logprob = std::min(logit - best - std::log(sum), 0.0) + 0.0;
  score.best = static_cast<TokenId>(best_id);
  return true;
}

std::int64_t Scorer::Running::prefill_left() const {
  return std::max<std::int64_t>(std::min(task.prefill_tokens, task.computed_tokens()) - computed,
                                0);
}

Scorer::Scorer(const Options& options, DecoderModel& model, KvStore& kv, ThreadPool& pool,
               Stream& stream)
    : options_(options), model_(&model), kv_(&kv), pool_(&pool), stream_(&stream) {
  TRIPHASE_CHECK(options.batch_size > 0 && options.prefill_chunk > 0, "scorer options");
  running_.reserve(static_cast<std::size_t>(options.batch_size));
}

Scorer::~Scorer() {
  for (const Running& running : running_) kv_->release(running.id);
}

bool Scorer::has_room() const {
  return waiting_.size() < kWaitingPerPlace * static_cast<std::size_t>(options_.batch_size);
}

void Scorer::submit(ScoreTask task) {
  const auto size = static_cast<std::int64_t>(task.tokens.size());
  TRIPHASE_CHECK(task.first_scored >= 1 && task.first_scored < size, "something to score");
  TRIPHASE_CHECK(task.computed_tokens() <= model_->config().max_positions, "within the context");
  waiting_.push_back(std::move(task));
}

std::vector<ScoredTask> Scorer::step() {
  admit_waiting();
  if (running_.empty()) return {};
  const auto start = std::chrono::steady_clock::now();
  build_batch();
  const ConstMatrix logits =
      model_->forward({batch_tokens_, batch_segments_, logit_rows_}, *kv_, *stream_);
  stream_->synchronize();
  for (const BatchSegment& segment : batch_segments_) {
    Running& running = *std::ranges::find(running_, segment.sequence, &Running::id);
    running.computed += segment.count;
    std::span<const TokenId> prefix = shareable_prefix(running.task);
    prefix = prefix.first(static_cast<std::size_t>(
        model_->prompt_units().causal_tokens(static_cast<std::int64_t>(prefix.size()))));
    kv_->residency().publish(
        running.id,
        prefix.first(std::min(static_cast<std::size_t>(running.computed), prefix.size())));
  }
  score_rows(logits);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double prefill_share =
      static_cast<double>(batch_prefill_rows_) / static_cast<double>(batch_tokens_.size());
  stats_.prefill_seconds += seconds.count() * prefill_share;
  stats_.decode_seconds += seconds.count() * (1.0 - prefill_share);
  stats_.computed_tokens += batch_tokens_.size();
  stats_.decoded_tokens += batch_tokens_.size() - static_cast<std::size_t>(batch_prefill_rows_);
  ++stats_.steps;
  return collect_finished();
}

std::vector<ScoredTask> Scorer::score_all(std::vector<ScoreTask> tasks,
                                          const std::function<void(std::uint64_t done)>& on_step) {
  std::vector<ScoredTask> results(tasks.size());
  std::vector<std::uint64_t> keys;
  for (std::size_t at = 0; at < tasks.size(); ++at) {
    keys.push_back(std::exchange(tasks[at].key, at));
    submit(std::move(tasks[at]));
  }
  while (in_flight() > 0) {
    for (ScoredTask& done : step()) {
      const std::size_t at = done.key;
      results[at] = std::move(done);
      results[at].key = keys[at];
    }
    if (on_step) on_step(results.size() - in_flight());
  }
  return results;
}

// Rows that an attention method must see cannot come from another task.
std::optional<std::int64_t> Scorer::most_shared_blocks(const ScoreTask& task) const {
  if (model_->attention() == nullptr) return std::nullopt;
  return model_->attention()->shareable_tokens(prefilled_tokens(task)) / kv_->shape().block_tokens;
}

void Scorer::admit_waiting() {
  for (auto entry = waiting_.begin();
       entry != waiting_.end() &&
       running_.size() < static_cast<std::size_t>(options_.batch_size);) {
    const std::uint64_t rope_key = model_->rope_key_for_prompt(entry->computed_tokens());
    if (most_shared_blocks(*entry).value_or(1) > 0 &&
        should_wait_for_shared_prefix(*entry, rope_key)) {
      ++entry;
      continue;
    }
    // The token before the first scored one is always computed: its logits are wanted.
    const KvResidency::Admission admission = kv_->residency().admit(
        std::span(entry->tokens).first(std::max<std::size_t>(shareable_prefix(*entry).size(), 1)),
        entry->computed_tokens(), rope_key, {.most_shared_blocks = most_shared_blocks(*entry)});
    if (!admission.sequence.valid()) break;  // strictly in order from here on
    stats_.shared_tokens += static_cast<std::uint64_t>(admission.shared_tokens);
    model_->begin_sequence(admission.sequence, prefilled_tokens(*entry));
    Running running{.task = std::move(*entry),
                    .id = admission.sequence,
                    .rope_key = rope_key,
                    .computed = admission.shared_tokens,
                    .result = {}};
    running.result.key = running.task.key;
    running.result.scores.resize(running.task.tokens.size() -
                                 static_cast<std::size_t>(running.task.first_scored));
    running_.push_back(std::move(running));
    entry = waiting_.erase(entry);
  }
  stats_.max_batch = std::max(stats_.max_batch, static_cast<std::int64_t>(running_.size()));
  TRIPHASE_CHECK(!running_.empty() || waiting_.empty(), "a submitted task fits alone");
}

bool Scorer::should_wait_for_shared_prefix(const ScoreTask& waiting, std::uint64_t rope_key) const {
  const std::span<const TokenId> prefix = shareable_prefix(waiting);
  for (const Running& running : running_) {
    if (running.rope_key != rope_key) continue;
    const std::span<const TokenId> other = shareable_prefix(running.task);
    if (running.computed >= static_cast<std::int64_t>(other.size())) continue;
    if (shareable_tokens(prefix, other, kv_->shape().block_tokens) > running.computed) return true;
  }
  return false;
}

void Scorer::build_batch() {
  batch_tokens_.clear();
  batch_segments_.clear();
  logit_rows_.clear();
  wanted_.clear();
  batch_prefill_rows_ = 0;
  std::vector<SequenceProgress> progress;
  progress.reserve(running_.size());
  for (const Running& running : running_) {
    progress.push_back({running.prefill_left(), running.computed});
  }
  const std::vector<std::int64_t> counts =
      plan_step(progress, {.rows = options_.batch_size + options_.prefill_chunk,
                           .prefill_chunk = options_.prefill_chunk,
                           .units = model_->prompt_units()});
  for (std::size_t index = 0; index < running_.size(); ++index) {
    if (counts[index] == 0) continue;
    const Running& running = running_[index];
    kv_->residency().append(running.id, counts[index]);
    const auto first_row = static_cast<std::int64_t>(batch_tokens_.size());
    batch_segments_.push_back({.sequence = running.id,
                               .first_row = first_row,
                               .count = counts[index],
                               .first_position = running.computed,
                               .rope_key = running.rope_key});
    for (std::int64_t row = 0; row < counts[index]; ++row) {
      const std::int64_t position = running.computed + row;
      batch_tokens_.push_back(running.task.tokens[static_cast<std::size_t>(position)]);
      if (position + 1 < running.task.first_scored) continue;
      logit_rows_.push_back(static_cast<std::int32_t>(first_row + row));
      wanted_.push_back({index, position + 1});
    }
    if (running.prefill_left() > 0) batch_prefill_rows_ += counts[index];
  }
}

void Scorer::score_rows(ConstMatrix logits) {
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  pool_->parallel_for(static_cast<std::int64_t>(wanted_.size()), [&](std::int64_t row, int) {
    const WantedRow& wanted = wanted_[static_cast<std::size_t>(row)];
    Running& running = running_[wanted.owner];
    const float* values = static_cast<const float*>(logits.data) + row * logits.row_stride;
    TokenScore& score =
        running.result.scores[static_cast<std::size_t>(wanted.target - running.task.first_scored)];
    const TokenId token = running.task.tokens[static_cast<std::size_t>(wanted.target)];
    if (!score_token({values, vocabulary}, token, score)) score.logprob = NAN;
    if (options_.on_row) {
      options_.on_row({.key = running.task.key,
                       .score = static_cast<std::size_t>(wanted.target - running.task.first_scored),
                       .logits = {values, vocabulary}});
    }
  });
  stats_.scored_tokens += wanted_.size();
}

std::vector<ScoredTask> Scorer::collect_finished() {
  std::vector<ScoredTask> finished;
  for (Running& running : running_) {
    if (running.computed < running.task.computed_tokens()) continue;
    kv_->release(running.id);
    model_->end_sequence(running.id);
    running.result.finite = std::ranges::none_of(
        running.result.scores, [](const TokenScore& score) { return std::isnan(score.logprob); });
    finished.push_back(std::move(running.result));
    running.task.tokens.clear();
  }
  std::erase_if(running_, [](const Running& running) { return running.task.tokens.empty(); });
  return finished;
}

}  // namespace triphase
