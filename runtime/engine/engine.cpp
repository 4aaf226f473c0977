#include "runtime/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

// Partial INT8 blocks stay in their pages, of which there are so many for each request of a batch.
std::int64_t partial_blocks(const EngineOptions& options, const KvStore& kv) {
  const bool for_all =
      kv.partial_pages().pages() >= 2 * options.batch_size * kv.memory().shape().layers;
  return kv.memory().shape().quantized() && !for_all ? options.batch_size : 0;
}

PlacementLimits limits_of(const EngineOptions& options, const KvStore& kv) {
  return {.layers = kv.memory().shape().layers,
          .block_tokens = kv.memory().shape().block_tokens,
          .device_blocks = kv.book().tiers().device.places(),
          .host_blocks = kv.memory().sizes().host_blocks,
          .input_blocks = kv.memory().sizes().input_blocks,
          .batch_size = options.batch_size,
          .prefill_chunk = options.prefill_chunk,
          .partial_blocks = partial_blocks(options, kv),
          .windows = kv.book().window_shape()};
}

}  // namespace

Engine::Engine(const EngineOptions& options, const PlacementPolicy& policy, DecoderModel& model,
               KvStore& kv, const PromptPreparer& preparer, const Tokenizer* tokenizer,
               Backend& backend)
    : options_(options),
      model_(&model),
      kv_(&kv),
      preparer_(&preparer),
      tokenizer_(tokenizer),
      backend_(&backend),
      sampler_(backend, model.config().vocab_size),
      sampled_vocab_(model.config().vocab_size),
      placement_(policy, limits_of(options, kv), kv, model) {
  TRIPHASE_CHECK(options.batch_size > 0 && options.prefill_chunk > 0, "engine options");
  if (tokenizer != nullptr) sampled_vocab_ = std::min(sampled_vocab_, tokenizer->vocab_size());
  const auto places = static_cast<std::size_t>(options.batch_size);
  running_.reserve(places);
  batch_tokens_.reserve(places + static_cast<std::size_t>(options.prefill_chunk));
  batch_segments_.reserve(places);
  logit_rows_.reserve(places);
  wanted_.reserve(places);
  sample_rows_.reserve(places);
}

Engine::~Engine() {
  // A destructor must not throw what made a transfer fail, or a step.
  if (queued_) {
    try {
      backend_->stream().synchronize();
    } catch (...) {
      // Nobody asks for its results any more.
    }
  }
  if (in_flight() > 0 || kv_->book().pool().moving()) kv_->give_up();
}

bool Engine::has_room() const { return waiting_.size() < placement_.waiting_in_view(); }

std::uint64_t Engine::in_flight() const {
  return waiting_.size() + running_.size() + preempted_.size() + finished_.size();
}

void Engine::submit(Request request) {
  const std::uint64_t index = request.index;
  const std::uint32_t part = request.part;
  if (auto error = preparer_->prepare(request)) {
    Completion completion;
    completion.index = index;
    completion.part = part;
    completion.error = std::move(error);
    finished_.push_back(std::move(completion));
    return;
  }
  waiting_.push_back(std::make_unique<Sequence>(std::move(request), options_.job_seed,
                                                model_->config().eos_ids, tokenizer_));
}

void Engine::submit(ScoreTask task) {
  TRIPHASE_CHECK(task.computed_tokens() <= model_->config().max_positions, "within the context");
  waiting_.push_back(std::make_unique<Sequence>(std::move(task)));
}

std::vector<Completion> Engine::step() {
  if (queued_ && !failure_) finish_step();
  if (trace_ != nullptr) trace_->flush_if_large();
  if (failure_) std::rethrow_exception(failure_);
  if (!waiting_.empty() || !running_.empty() || !preempted_.empty()) {
    try {
      queue_step();
    } catch (...) {
      // What the step before finished goes to the caller first.
      if (finished_.empty()) throw;
      failure_ = std::current_exception();
      return std::exchange(finished_, {});
    }
  }
  if (queued_ && (backend_->device().runs_at_once() || sample_rows_.empty())) finish_step();
  return std::exchange(finished_, {});
}

void Engine::queue_step() {
  // Waiting for moves between the tiers is part of what a step costs.
  queued_.emplace(trace_);
  admit_and_place();
  build_batch();
  TraceSpan& span = queued_->span;
  span.note("step", placement_.step());
  span.note("requests", static_cast<std::int64_t>(running_.size()));
  span.note("prefill_rows", batch_prefill_rows_);
  span.note("decode_rows", static_cast<std::int64_t>(batch_tokens_.size()) - batch_prefill_rows_);
  if (trace_ != nullptr) trace_memory();
  queued_->logits = forward();
  count_computed();
  queued_->results = sampler_.sample(queued_->logits, sample_rows_);
}

void Engine::finish_step() {
  {
    TraceSpan span(trace_, TraceLane::kHost, "sample");
    span.note("rows", static_cast<std::int64_t>(wanted_.size()));
    if (!sample_rows_.empty()) sampler_.wait();
    use_results(queued_->results);
    if (on_row_) show_scored_rows(queued_->logits);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - queued_->start;
  count_step(seconds.count());
  collect_finished();
  queued_.reset();
}

void Engine::count_computed() {
  for (const BatchSegment& segment : batch_segments_) {
    RunningRequest& running = *std::ranges::find(running_, segment.sequence, &RunningRequest::id);
    running.computed += segment.count;
    const std::span<const TokenId> prefix = running.sequence->shareable_tokens();
    const std::int64_t exact =
        model_->attention().prompt_units().causal_tokens(static_cast<std::int64_t>(prefix.size()));
    kv_->book().publish(running.id,
                        prefix.first(static_cast<std::size_t>(std::min(running.computed, exact))));
  }
}

void Engine::count_step(double seconds) {
  const double prefill_share =
      static_cast<double>(batch_prefill_rows_) / static_cast<double>(batch_tokens_.size());
  stats_.prefill_seconds += seconds * prefill_share;
  stats_.decode_seconds += seconds * (1.0 - prefill_share);
  stats_.decoded_tokens += batch_tokens_.size() - static_cast<std::size_t>(batch_prefill_rows_);
  ++stats_.steps;
  PhaseUse& phase = stats_.phases[static_cast<std::size_t>(placement_.phases().of_step()) - 1];
  ++phase.steps;
  phase.seconds += seconds;
}

ConstMatrix Engine::forward() {
  const TraceSpan queueing(trace_, TraceLane::kHost, "queue", !backend_->device().runs_at_once());
  const TraceSpan span(trace_, TraceLane::kCompute, "forward");
  return model_->forward({batch_tokens_, batch_segments_, logit_rows_, sample_rows_}, *kv_,
                         backend_->stream());
}

void Engine::set_trace(Trace* trace) {
  trace_ = trace;
  placement_.set_trace(trace);
  sampler_.set_trace(trace);
}

void Engine::finish_trace() {
  if (trace_ == nullptr) return;
  for (const RunningRequest& request : running_) placement_.request_ended(request);
  placement_.finish_trace();
}

// KV bytes by tier, once the step's blocks are taken.
void Engine::trace_memory() const {
  const KvBook& book = kv_->book();
  const auto block = static_cast<std::int64_t>(kv_->memory().shape().host_block_bytes());
  trace_->add({.kind = TraceEvent::Kind::kCounter,
               .name = "KV bytes",
               .begin = TraceEvent::Clock::now(),
               .values = {{{"device", book.tiers().device.used() * block},
                           {"host", book.tiers().host.used() * block}}}});
}

void Engine::admit_and_place() {
  step_tokens_ = placement_.place({waiting_, running_, preempted_});
  stats_.shared_prompt_tokens = placement_.stats().shared_prompt_tokens;
  stats_.max_batch = std::max(stats_.max_batch, static_cast<std::int64_t>(running_.size()));
  TRIPHASE_CHECK(!running_.empty() || (waiting_.empty() && preempted_.empty()),
                 "a prepared request fits alone");
}

void Engine::build_batch() {
  batch_tokens_.clear();
  batch_segments_.clear();
  logit_rows_.clear();
  wanted_.clear();
  batch_prefill_rows_ = 0;
  for (std::size_t index = 0; index < running_.size(); ++index) {
    if (step_tokens_[index] == 0) continue;
    const RunningRequest& running = running_[index];
    // Pages may be on their way to the host still.
    if (kv_->book().append_room(running.id) < step_tokens_[index]) kv_->settle();
    kv_->book().append(running.id, step_tokens_[index]);
    const bool decode = running.prefill_left() == 0;
    const std::span<const TokenId> tokens = running.sequence->tokens().subspan(
        static_cast<std::size_t>(running.computed), static_cast<std::size_t>(step_tokens_[index]));
    batch_segments_.push_back(
        {.sequence = running.id,
         .first_row = static_cast<std::int64_t>(batch_tokens_.size()),
         .count = step_tokens_[index],
         .first_position = running.computed,
         .rope_key = running.rope_key,
         .decode = decode,
         .continues = decode && running.computed + 2 <= running.sequence->max_kv_tokens()});
    batch_tokens_.insert(batch_tokens_.end(), tokens.begin(), tokens.end());
    if (!decode) batch_prefill_rows_ += step_tokens_[index];
    if (!decode || running.sequence->scored()) {
      stats_.computed_prompt_tokens += static_cast<std::uint64_t>(step_tokens_[index]);
    }
    want_logits(index, step_tokens_[index]);
  }
  const std::int64_t vocabulary = model_->config().vocab_size;
  sample_rows_.clear();
  for (const LogitRow& wanted : wanted_) {
    const Sequence& sequence = *running_[wanted.owner].sequence;
    sample_rows_.push_back(sequence.scored() ? sequence.score_row(wanted.position, vocabulary)
                                             : sequence.next_row(sampled_vocab_));
  }
}

// Asks for logits of the request's new rows, which are the last rows of the batch.
void Engine::want_logits(std::size_t owner, std::int64_t count) {
  const RunningRequest& request = running_[owner];
  const auto end_row = static_cast<std::int64_t>(batch_tokens_.size());
  const std::int64_t end = request.computed + count;
  for (std::int64_t position = std::max<std::int64_t>(end - count, 0); position < end; ++position) {
    if (!request.sequence->wants_logits(position)) continue;
    logit_rows_.push_back(static_cast<std::int32_t>(end_row - (end - position)));
    wanted_.push_back({owner, position});
  }
}

void Engine::use_results(std::span<const SampleResult> results) {
  for (std::size_t row = 0; row < results.size(); ++row) {
    const LogitRow& wanted = wanted_[row];
    Sequence& sequence = *running_[wanted.owner].sequence;
    if (sequence.scored()) {
      sequence.score(wanted.position, results[row]);
    } else {
      sequence.sample_next(results[row]);
      ++stats_.generated_tokens;
    }
  }
}

void Engine::show_scored_rows(ConstMatrix logits) {
  const ConstMatrix on_host = sampler_.on_host(logits);
  backend_->threads().parallel_for(on_host.rows, [&](std::int64_t row, int) {
    const LogitRow& wanted = wanted_[static_cast<std::size_t>(row)];
    const Sequence& sequence = *running_[wanted.owner].sequence;
    if (!sequence.scored()) return;
    on_row_({sequence.request().index,
             sequence.score_index(wanted.position),
             {static_cast<const float*>(on_host.data) + row * on_host.row_stride,
              static_cast<std::size_t>(on_host.cols)}});
  });
}

void Engine::collect_finished() {
  for (RunningRequest& running : running_) {
    const bool scored =
        running.sequence->scored() && running.computed == running.sequence->max_kv_tokens();
    if (!scored && !running.sequence->finished()) continue;
    placement_.request_ended(running);
    kv_->release(running.id);
    model_->attention().end_sequence(running.id);
    finished_.push_back(running.sequence->take_completion());
    running.sequence.reset();
  }
  std::erase_if(running_,
                [](const RunningRequest& running) { return running.sequence == nullptr; });
}

}  // namespace triphase
