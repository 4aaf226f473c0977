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
               KvStore& kv, const Tokenizer* tokenizer, Backend& backend,
               const PromptPreparer* preparer)
    : options_(options),
      model_(&model),
      kv_(&kv),
      preparer_(preparer),
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
  sample_rows_.reserve(places);
}

Engine::Engine(const RunPlan& plan, LoadedModel& loaded, const Workplace& place,
               const PromptPreparer* preparer, std::uint64_t job_seed)
    : Engine({plan.memory.batch_size, plan.prefill_chunk, job_seed}, *plan.policy, loaded.decoder,
             loaded.kv, place.model.tokenizer.get(), place.backend, preparer) {}

Engine::~Engine() {
  // A destructor must not throw what made a transfer fail, or a step.
  try {
    backend_->stream().synchronize();
  } catch (...) {
    // Nobody asks for its results any more.
  }
  if (in_flight() > 0 || kv_->book().pool().moving()) kv_->give_up();
}

bool Engine::has_room() const { return waiting_.size() < placement_.waiting_in_view(); }

std::uint64_t Engine::in_flight() const {
  return waiting_.size() + running_.size() + ending_.size() + preempted_.size() + finished_.size();
}

void Engine::submit(Request request) {
  auto error = preparer_ == nullptr ? std::nullopt : preparer_->prepare(request);
  if (error) {
    Completion& completion = finished_.emplace_back();
    completion.index = request.index;
    completion.part = request.part;
    completion.error = std::move(error);
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
  if (!failure_ && queued_ != nullptr) {
    if (can_run_ahead()) {
      set_ending_aside();
      if (has_work()) queue_step_or_fail(ahead_);
    }
    finish_step();
  }
  if (trace_ != nullptr) trace_->flush_if_large();
  if (!failure_ && queued_ == nullptr && has_work()) queue_step_or_fail(queued_);
  if (failure_ && finished_.empty()) std::rethrow_exception(failure_);
  const bool no_results = queued_ != nullptr && queued_->rows.empty();
  if (queued_ != nullptr && (backend_->device().runs_at_once() || no_results)) finish_step();
  return std::exchange(finished_, {});
}

bool Engine::can_run_ahead() const {
  // Traces and observers look at one step after the other, and hosts that attend wait for keys.
  if (backend_->device().runs_at_once() || trace_ != nullptr || on_row_ ||
      kv_->memory().shape().host_attention) {
    return false;
  }
  return std::ranges::none_of(running_, [](const RunningRequest& request) {
    return request.sequence->awaited_tokens() > 0 && request.sequence->draws_by_history();
  });
}

void Engine::set_ending_aside() {
  for (RunningRequest& request : running_) {
    if (!request.computed_all()) continue;
    give_up_kv(request);
    ending_.push_back(std::move(request));
  }
  std::erase_if(running_, [](const auto& running) { return running.sequence == nullptr; });
}

void Engine::queue_step_or_fail(std::unique_ptr<Queued>& step) {
  try {
    step = queue_step();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::unique_ptr<Engine::Queued> Engine::queue_step() {
  // Waiting for moves between the tiers is part of what a step costs.
  auto step = std::make_unique<Queued>(trace_);
  admit_and_place();
  build_batch(*step);
  step->span.note("step", placement_.step());
  step->span.note("requests", std::ssize(running_));
  step->span.note("prefill_rows", step->prefill_rows);
  step->span.note("decode_rows", step->decode_rows);
  step->phase = placement_.phases().of_step();
  if (trace_ != nullptr) trace_memory();
  step->logits = forward();
  count_computed();
  step->drawn = sampler_.sample(step->logits, sample_rows_);
  return step;
}

void Engine::finish_step() {
  const std::unique_ptr<Queued> step = std::exchange(queued_, std::move(ahead_));
  {
    TraceSpan span(trace_, TraceLane::kHost, "sample");
    span.note("rows", std::ssize(step->rows));
    sampler_.wait(step->drawn);
    use_results(*step);
    if (on_row_) show_scored_rows(*step);
  }
  count_step(*step);
  collect_finished();
}

void Engine::count_computed() {
  for (const BatchSegment& segment : batch_segments_) {
    RunningRequest& running = *std::ranges::find(running_, segment.sequence, &RunningRequest::id);
    running.computed += segment.count;
    const std::span<const TokenId> prefix = running.sequence->shareable_tokens();
    const std::int64_t exact = model_->attention().prompt_units().causal_tokens(std::ssize(prefix));
    kv_->book().publish(running.id,
                        prefix.first(static_cast<std::size_t>(std::min(running.computed, exact))));
  }
}

void Engine::count_step(const Queued& step) {
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> time = now - std::max(step.start, last_finish_);
  last_finish_ = now;
  const double seconds = time.count();
  const double prefill_share = static_cast<double>(step.prefill_rows) /
                               static_cast<double>(step.prefill_rows + step.decode_rows);
  stats_.prefill_seconds += seconds * prefill_share;
  stats_.decode_seconds += seconds * (1.0 - prefill_share);
  stats_.decoded_tokens += static_cast<std::uint64_t>(step.decode_rows);
  ++stats_.steps;
  PhaseUse& phase = stats_.phases[static_cast<std::size_t>(step.phase) - 1];
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
  stats_.max_batch = std::max(stats_.max_batch, std::ssize(running_));
  TRIPHASE_CHECK(!running_.empty() || (waiting_.empty() && preempted_.empty()),
                 "a prepared request fits alone");
}

void Engine::build_batch(Queued& step) {
  batch_tokens_.clear();
  batch_segments_.clear();
  logit_rows_.clear();
  sample_rows_.clear();
  for (std::size_t index = 0; index < running_.size(); ++index) {
    const std::int64_t count = step_tokens_[index];
    if (count == 0) continue;
    RunningRequest& running = running_[index];
    // Pages may be on their way to the host still.
    if (kv_->book().append_room(running.id) < count) kv_->settle();
    kv_->book().append(running.id, count);
    const bool decode = running.prefill_left() == 0;
    batch_segments_.push_back(
        {.sequence = running.id,
         .first_row = std::ssize(batch_tokens_),
         .count = count,
         .first_position = running.computed,
         .rope_key = running.rope_key,
         .decode = decode,
         .continues = decode && running.computed + 2 <= running.sequence->max_kv_tokens()});
    add_tokens(running, count);
    (decode ? step.decode_rows : step.prefill_rows) += count;
    stats_.computed_prompt_tokens += static_cast<std::uint64_t>(running.first_of_prompt(count));
    stats_.recomputed_tokens += static_cast<std::uint64_t>(running.again(count));
    want_logits(running, count, decode, step);
  }
}

void Engine::add_tokens(const RunningRequest& running, std::int64_t count) {
  const std::span<const TokenId> tokens = running.sequence->tokens();
  const std::int64_t known = std::min(count, std::ssize(tokens) - running.computed);
  const auto first = tokens.begin() + running.computed;
  batch_tokens_.insert(batch_tokens_.end(), first, first + known);
  if (known == count) return;
  TRIPHASE_CHECK(known + 1 == count && running.sequence->awaited_tokens() > 0,
                 "at most one token that is awaited");
  batch_tokens_.push_back(~running.awaited_row);
}

// Asks for logits of the request's new rows, which are the last rows of the batch.
void Engine::want_logits(RunningRequest& request, std::int64_t count, bool decoded, Queued& step) {
  Sequence& sequence = *request.sequence;
  const auto end_row = std::ssize(batch_tokens_);
  const std::int64_t end = request.computed + count;
  const std::int64_t vocabulary = model_->config().vocab_size;
  for (std::int64_t position = std::max<std::int64_t>(end - count, 0); position < end; ++position) {
    if (!sequence.wants_logits(position)) continue;
    logit_rows_.push_back(static_cast<std::int32_t>(end_row - (end - position)));
    if (sequence.scored()) {
      sample_rows_.push_back(sequence.score_row(position, vocabulary));
    } else {
      sample_rows_.push_back(sequence.next_row(sampled_vocab_));
      sequence.await_token();
      request.awaited_row = static_cast<std::int32_t>(step.rows.size());
    }
    step.rows.push_back({&sequence, position, decoded && position >= request.had});
  }
}

void Engine::use_results(const Queued& step) {
  for (std::size_t row = 0; row < step.rows.size(); ++row) {
    Sequence* sequence = step.rows[row].sequence;
    if (sequence == nullptr) continue;
    stats_.results_of_decoding += step.rows[row].decoded ? 1 : 0;
    if (sequence->scored()) {
      sequence->score(step.rows[row].position, step.drawn.results[row]);
    } else {
      sequence->sample_next(step.drawn.results[row]);
      ++stats_.generated_tokens;
    }
  }
}

void Engine::show_scored_rows(const Queued& step) {
  const ConstMatrix on_host = sampler_.on_host(step.logits);
  backend_->threads().parallel_for(on_host.rows, [&](std::int64_t row, int) {
    const LogitRow& scored = step.rows[row];
    if (!scored.sequence->scored()) return;
    on_row_({scored.sequence->request().index,
             scored.sequence->score_index(scored.position),
             {static_cast<const float*>(on_host.data) + row * on_host.row_stride,
              static_cast<std::size_t>(on_host.cols)}});
  });
}

void Engine::collect_finished() {
  for (RunningRequest& running : running_) {
    if (running.sequence->finished()) take_completion(running);
  }
  std::erase_if(running_, [](const auto& running) { return running.sequence == nullptr; });
  for (RunningRequest& ending : ending_) take_completion(ending);
  ending_.clear();
  // A step that was queued ahead may have preempted a request before its end was known.
  for (auto& [request, mode] : preempted_) {
    if (request.sequence->finished()) take_completion(request);
  }
  std::erase_if(preempted_, [](const auto& one) { return one.request.sequence == nullptr; });
}

void Engine::give_up_kv(RunningRequest& request) {
  // A dropped request has none.
  if (!request.id.valid()) return;
  kv_->release(request.id);
  model_->attention().end_sequence(request.id);
  request.id = SequenceId();
}

void Engine::take_completion(RunningRequest& request) {
  placement_.request_ended(request);
  give_up_kv(request);
  finished_.push_back(request.sequence->take_completion());
  if (queued_ != nullptr) {
    for (LogitRow& row : queued_->rows) {
      if (row.sequence == request.sequence.get()) row.sequence = nullptr;
    }
  }
  request.sequence.reset();
}

}  // namespace triphase
