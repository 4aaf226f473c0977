#include "scheduler/simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "scheduler/attention/attended_shares.h"
#include "scheduler/kv/group_pages.h"
#include "scheduler/memory_plan.h"
#include "scheduler/placement/placement_step.h"
#include "scheduler/simulator/job_memory.h"

namespace triphase {
namespace {

struct RequestState {
  std::size_t index = 0;       // into the job's requests
  std::int64_t generated = 0;  // tokens sampled so far
  PlacedRequest place;
  bool decoded = false;  // in the step before
  bool on_host = false;  // decoded rows are attended there, and new tokens stored as they are made
};

KvBook::Shape book_shape(const JobMemory& memory) {
  return {.block_tokens = std::max<std::int64_t>(memory.limits.block_tokens, 1),
          .device_blocks = memory.limits.device_blocks,
          .host_blocks = memory.limits.host_blocks,
          .input_blocks = memory.limits.input_blocks,
          .mirrored = memory.placement.host_kv == HostKvUse::kCpuAttention,
          .windows = memory.limits.windows};
}

// How many waiting prompts a policy sees; the engine looks ahead twice a batch.
constexpr std::size_t kLookAhead = 2;
// Of waiting_: it waits no longer.
constexpr std::size_t kAdmitted = std::numeric_limits<std::size_t>::max();

class Simulation {
 public:
  Simulation(const PlacementPolicy& policy, const CostModel& cost, const SimulatedJob& job)
      : policy_(policy),
        cost_(cost),
        job_(job),
        whole_share_(whole_share(job.model)),
        memory_(divide_memory(policy, job)),
        host_share_(memory_.limits.windows.blocks > 0 ? 1.0 : whole_share_),
        book_(book_shape(memory_)),
        waiting_(job.requests.size()) {
    std::iota(waiting_.begin(), waiting_.end(), std::size_t{0});
  }

  SimulationResult run() {
    result_.infeasible = memory_.infeasible;
    result_.kv_dtype = memory_.kv_dtype;
    result_.streamed_layers = memory_.streamed_layers;
    if (memory_.placement.host_kv == HostKvUse::kCpuAttention && !cost_.can_attend_on_host()) {
      result_.infeasible = "the profile does not say what attention on the host costs";
    }
    if (result_.infeasible.empty()) {
      while (!waiting_.empty() || !running_.empty() || !preempted_.empty()) step();
      result_.seconds = result_.lanes.step;
      result_.tokens_per_second = static_cast<double>(result_.generated_tokens) / result_.seconds;
    }
    return std::move(result_);
  }

 private:
  // Whole blocks that the step before may fetch for this one (memory/kv/kv_prefetcher.h).
  struct EarlyReads {
    std::int64_t requests = 0;
    std::int64_t blocks = 0;  // of one layer
    std::int64_t largest = 0;
  };

  [[nodiscard]] PlacementStep make_step() {
    std::vector<PlacedRequest> running;
    std::vector<PlacedRequest> preempted;
    for (const RequestState& request : running_) running.push_back(request.place);
    for (const RequestState& request : preempted_) preempted.push_back(request.place);
    const auto batch = static_cast<std::size_t>(job_.batch_size);
    WaitingQueue queue{.size = std::min(waiting_.size(), kLookAhead * batch)};
    queue.request = [this](std::size_t place) {
      const SimulatedRequest& request = job_.requests[waiting_[place]];
      return WaitingRequest{.prompt_tokens = request.prompt_tokens,
                            .max_tokens = request.kv_tokens(),
                            .tokens = request.findable()};
    };
    return {memory_.limits,     result_.steps_taken,  book_,
            std::move(running), std::move(preempted), std::move(queue)};
  }

  void step() {
    book_.finish_moves();
    PlacementStep step = make_step();
    policy_.decide(step);
    StepWork work;
    carry_out(step.finish(), work);
    take_places();
    compute(work);
    ++result_.steps_taken;
    end_finished();
  }

  [[nodiscard]] double block_bytes(std::int64_t blocks) const {
    return static_cast<double>(blocks * memory_.limits.block_tokens) * memory_.kv_token;
  }

  // Bytes of whole blocks that cross the link.
  [[nodiscard]] double moved_bytes(double blocks) const {
    return blocks * static_cast<double>(memory_.limits.block_tokens) * memory_.record_token;
  }

  // Of blocks on their way out the step's tokens may need the places; then it waits for them.
  void take_places() {
    for (const RequestState& request : running_) {
      const std::int64_t rows = request.place.step_tokens;
      if (rows == 0) continue;
      if (book_.append_room(request.place.id) < rows) book_.finish_moves();
      book_.append(request.place.id, rows);
    }
  }

  // Counts the bytes that the answer moves, and does to the lists what it did to the book.
  void carry_out(const PlacementAnswer& answer, StepWork& work) {
    for (const KvMove& move : answer.moves) {
      if (move.kind == KvMove::Kind::kOffload) work.d2h_bytes += moved_bytes(1);
      if (move.kind == KvMove::Kind::kLoad) work.h2d_bytes += moved_bytes(1);
    }
    for (const PlacementAction& action : answer.actions) {
      if (const auto* preempt = std::get_if<Preempt>(&action)) preempt_request(*preempt);
      if (const auto* resume = std::get_if<Resume>(&action)) resume_request(*resume);
      if (const auto* admit = std::get_if<Admit>(&action)) admit_request(*admit);
    }
    const bool admits = std::ranges::any_of(answer.actions, [](const PlacementAction& action) {
      return std::holds_alternative<Admit>(action);
    });
    if (admits) std::erase(waiting_, kAdmitted);
    for (std::size_t index = 0; index < running_.size(); ++index) {
      running_[index].place.step_tokens = answer.tokens[index];
    }
    result_.max_running = std::max(result_.max_running, static_cast<std::int64_t>(running_.size()));
  }

  void admit_request(const Admit& action) {
    const std::size_t index = std::exchange(waiting_[action.waiting], kAdmitted);
    const SimulatedRequest& request = job_.requests[index];
    const bool on_host =
        memory_.placement.host_kv == HostKvUse::kCpuAttention && action.host_blocks > 0;
    running_.push_back({.index = index,
                        .place = {.id = action.sequence,
                                  .admission = admissions_++,
                                  .prompt_tokens = request.prompt_tokens,
                                  .prefill_tokens = request.prompt_tokens,
                                  .context = book_.sequence(action.sequence).tokens,
                                  .max_tokens = request.kv_tokens(),
                                  .tokens = request.prefix},
                        .on_host = on_host});
  }

  void preempt_request(const Preempt& action) {
    const auto found = std::ranges::find_if(
        running_, [&](const RequestState& request) { return request.place.id == action.sequence; });
    RequestState request = *found;
    running_.erase(found);
    ++result_.suspensions;
    PlacedRequest& place = request.place;
    place.mode = action.mode;
    place.step_tokens = 0;
    if (action.mode == PreemptMode::kDrop) {
      place.tokens = job_.requests[request.index].findable();
      result_.repeated_tokens += static_cast<std::uint64_t>(place.context);
      // The last token it sampled is computed with the others.
      if (!place.prefilling()) place.prefill_tokens = place.context + 1;
      place.context = 0;
      place.id = SequenceId();
    }
    request.decoded = false;
    const auto at = std::ranges::find_if(preempted_, [&](const RequestState& other) {
      return other.place.admission > place.admission;
    });
    preempted_.insert(at, request);
  }

  void resume_request(const Resume& action) {
    const auto found = std::ranges::find_if(preempted_, [&](const RequestState& request) {
      return request.place.admission == action.admission;
    });
    PlacedRequest& place = running_.emplace_back(*found).place;
    place.id = action.sequence;
    if (place.mode == PreemptMode::kDrop) place.context = book_.sequence(place.id).tokens;
    place.tokens = job_.requests[found->index].prefix;
    preempted_.erase(found);
  }

  // Blocks that the step reads on the host or recomputes.
  [[nodiscard]] std::int64_t read_blocks(SequenceId id) const {
    return book_.table(id).up_to(BlockPlace::kHost) + book_.table(id).up_to(BlockPlace::kLoading) -
           book_.table(id).offloaded();
  }

  // Requests that follow each other are a group while their blocks fit its pages, as in the engine
  // (memory/kv/sequence_groups.cpp). What they share crosses the link once for each group.
  void begin_groups() {
    std::int64_t largest = 0;
    for (const RequestState& request : running_) {
      const PlacedRequest& place = request.place;
      if (place.step_tokens == 0 || (request.on_host && !place.prefilling())) continue;
      largest = std::max(largest, read_blocks(place.id));
    }
    group_pages_ = group_pages(memory_.staging_pages, largest);
    end_group();
  }
  void end_group() {
    ++group_;
    pages_in_group_ = 0;
  }
  // The next request reads its first `blocks` blocks whole.
  void read_in_group(SequenceId id, std::int64_t blocks) {
    const KvBlockTable table = book_.table(id);
    read_group_.resize(static_cast<std::size_t>(book_.pool().capacity()), 0);
    for (const bool again : {false, true}) {
      crossing_.assign(1, 0);
      for (std::int64_t position = 0; position < std::min(table.shared(), blocks); ++position) {
        const std::size_t number = static_cast<std::size_t>(table.number(position));
        crossing_.push_back(crossing_.back() + (read_group_[number] == group_ ? 0 : 1));
      }
      if (again || pages_in_group_ == 0) break;
      if (pages_in_group_ + crossing_blocks(blocks) <= group_pages_) break;
      end_group();
    }
    for (std::int64_t position = 0; position < std::ssize(crossing_) - 1; ++position) {
      read_group_[static_cast<std::size_t>(table.number(position))] = group_;
    }
    pages_in_group_ += crossing_blocks(blocks);
  }
  // Of the first blocks of the request that reads, those that its group had not read before it.
  [[nodiscard]] std::int64_t crossing_blocks(std::int64_t blocks) const {
    const std::int64_t shared = std::min<std::int64_t>(blocks, std::ssize(crossing_) - 1);
    return crossing_[static_cast<std::size_t>(shared)] + blocks - shared;
  }

  [[nodiscard]] bool reads_whole_blocks() const {
    return job_.caching_ratio >= 1.0 || job_.fetch == SparseFetch::kWholeBlocks;
  }

  // Of the first `tokens` tokens, those that layers with a window read in whole blocks on the host:
  // a mean over all layers.
  [[nodiscard]] double windowed_on_host(double tokens, double context) const {
    if (memory_.limits.windows.blocks > 0) return 0.0;
    return windowed_tokens(job_.model, tokens, context, memory_.limits.block_tokens);
  }

  // Tokens of a decoding sequence, one of `decoding` in the step, that the step reads on the host:
  // a mean over the layers that the method sees.
  [[nodiscard]] double read_on_host(std::int64_t context, double offloaded,
                                    std::int64_t decoding) const {
    if (reads_whole_blocks()) return offloaded;
    const double chosen =
        chosen_among_first({job_.caching_ratio, job_.dense_layers, job_.recent_share},
                           static_cast<double>(context), offloaded);
    const double missed =
        missed_tokens(chosen, job_.miss_rate,
                      static_cast<double>(memory_.cached_tokens) / static_cast<double>(decoding));
    return job_.dense_layers * offloaded + (1.0 - job_.dense_layers) * missed;
  }

  void compute(StepWork& work) {
    work.int8_kv = result_.kv_dtype == DType::kInt8;
    work.fetch = job_.fetch;
    const auto layers = static_cast<double>(memory_.limits.layers);
    double prefill_context = 0.0;
    EarlyReads early;
    SimulatedStep record;
    const std::int64_t decoding = std::ranges::count_if(running_, [](const RequestState& request) {
      return request.place.step_tokens > 0 && !request.place.prefilling();
    });
    begin_groups();
    for (RequestState& request : running_) {
      const PlacedRequest& place = request.place;
      if (place.step_tokens == 0) continue;
      if (place.prefilling()) {
        const auto rows = static_cast<double>(place.step_tokens);
        prefill_context +=
            rows * attended_before(job_.model, rows, static_cast<double>(place.context));
      }
      count_reads(request, decoding, early, work);
      count_writes(request, work);
      record.phase = std::max(record.phase, phase_of(book_, place.id));
      record.longest_context = std::max(record.longest_context, place.context + place.step_tokens);
      request.decoded = !place.prefilling();
      grow(request);
    }
    if (work.prefill_rows > 0) {
      work.prefill_context = prefill_context / static_cast<double>(work.prefill_rows);
    }
    work.record_bytes = memory_.record_layer;
    work.input_bytes = memory_.input_layer;
    if (memory_.placement.gpu_batch > 0 && work.decode_rows > 0) {
      work.decode_groups =
          (work.decode_rows + memory_.placement.gpu_batch - 1) / memory_.placement.gpu_batch;
    }
    work.h2d_bytes += streamed_bytes();
    work.h2d_copies = work.d2h_copies = layers;
    record.lanes = cost_.step(work, {.layers = memory_.limits.layers,
                                     .overlap = memory_.placement.overlap,
                                     .early_layers = layers_staged_ahead(
                                         memory_.staging_pages, early.blocks, early.largest,
                                         early.requests, memory_.limits.layers),
                                     .pinned = !job_.handicaps.pageable,
                                     .sync_each_layer = job_.handicaps.sync_each_layer});
    account(work, record);
  }

  // The request's rows in the step, and what they read: where it lies, and how it comes to the
  // device.
  void count_reads(const RequestState& request, std::int64_t decoding, EarlyReads& early,
                   StepWork& work) {
    const PlacedRequest& place = request.place;
    const std::int64_t offloaded_blocks = read_blocks(place.id);
    const std::int64_t recomputable = book_.table(place.id).recomputable();
    const auto offloaded = static_cast<double>(offloaded_blocks * memory_.limits.block_tokens);
    const double again_share = offloaded_blocks == 0 ? 0.0
                                                     : static_cast<double>(recomputable) /
                                                           static_cast<double>(offloaded_blocks);
    double fetched = offloaded;
    // In layers with a window: means over all layers.
    const auto context = static_cast<double>(place.context + 1);
    const bool attend_on_host = request.on_host && !place.prefilling();
    const bool whole = !attend_on_host && (reads_whole_blocks() || place.prefilling());
    if (whole) {
      read_in_group(place.id, offloaded_blocks);
    } else if (!attend_on_host) {
      end_group();
    }
    const std::int64_t again_blocks = whole ? crossing_blocks(recomputable) : recomputable;
    const auto again_tokens = static_cast<double>(again_blocks * memory_.limits.block_tokens);
    const double windowed = windowed_on_host(offloaded, context);
    const double windowed_again = windowed_on_host(again_tokens, context);
    if (place.prefilling()) {
      work.prefill_rows += place.step_tokens;
    } else {
      ++work.decode_rows;
      fetched = read_on_host(place.context + 1, offloaded, decoding);
      const double attended = std::max(std::floor(context * job_.caching_ratio), 1.0);
      if (!request.on_host) {
        work.attended_tokens +=
            whole_share_ * attended + windowed_tokens(job_.model, context, context);
        if (job_.caching_ratio < 1.0) work.choosing_tokens += whole_share_ * context;
      }
    }
    const double again = attend_on_host ? 0.0 : whole ? again_tokens : fetched * again_share;
    if (attend_on_host) {
      // The query goes there and the result comes back.
      if (job_.handicaps.copies_host_kv) count_workspace(work);
      ++work.host_attention_rows;
      work.host_attention_tokens +=
          whole_share_ * context + windowed_tokens(job_.model, context, context);
      work.d2h_bytes += memory_.query_row;
      work.h2d_bytes += memory_.query_row;
    } else if (whole) {
      if (job_.handicaps.copies_device_kv) count_copies(request, offloaded_blocks, work);
      const auto crossing = static_cast<double>(crossing_blocks(offloaded_blocks) - again_blocks);
      work.h2d_bytes += host_share_ * (moved_bytes(crossing) + again * memory_.input_token);
      if (!place.prefilling()) count_early(request, early, work);
    } else {
      const auto layers = static_cast<double>(memory_.limits.layers);
      work.gathered_records += whole_share_ * layers * (fetched - again);
      work.gathered_inputs += whole_share_ * layers * again;
    }
    if (attend_on_host) return;
    work.h2d_bytes +=
        (windowed - windowed_again) * memory_.record_token + windowed_again * memory_.input_token;
    if (again > 0.0) {
      ++work.recompute_rows;
      work.recompute_tokens += whole_share_ * again + windowed_again;
    }
  }

  // What the request's new tokens send to the host: cached hidden states, and KV where it is
  // attended there.
  void count_writes(const RequestState& request, StepWork& work) {
    const PlacedRequest& place = request.place;
    const std::int64_t rows = place.step_tokens;
    const std::int64_t with_inputs =
        book_.sequence(place.id).input_blocks * memory_.limits.block_tokens;
    const std::int64_t saved = std::clamp<std::int64_t>(with_inputs - place.context, 0, rows);
    work.d2h_bytes += static_cast<double>(saved) * memory_.input_token;
    result_.inputs_d2h_bytes += static_cast<double>(saved) * memory_.input_token;
    if (request.on_host) work.d2h_bytes += static_cast<double>(rows) * memory_.record_token;
    if (work.int8_kv) work.quantized_tokens += static_cast<double>(rows);
  }

  // A decoded row's KV is copied before it is read where all of it is on the device to stay; of an
  // INT8 request its full blocks.
  void count_copies(const RequestState& request, std::int64_t offloaded_blocks,
                    StepWork& work) const {
    const PlacedRequest& place = request.place;
    const bool on_host = offloaded_blocks > 0 || book_.sequence(place.id).reserved_host > 0;
    if (place.prefilling() || on_host) return;
    const std::int64_t blocks = work.int8_kv ? place.context / memory_.limits.block_tokens
                                             : memory_.limits.blocks_for(place.context + 1);
    work.copied_tokens += static_cast<double>(blocks * memory_.limits.block_tokens);
  }

  // What is stored is read once and written and read once more in F32.
  void count_workspace(StepWork& work) const {
    const auto stored = static_cast<double>(dtype_bytes(result_.kv_dtype));
    work.host_attention_passes = (stored + 2.0 * sizeof(float)) / stored;
  }

  void count_early(const RequestState& request, EarlyReads& early, StepWork& work) const {
    if (!request.decoded || job_.caching_ratio < 1.0) return;
    const SequenceId id = request.place.id;
    // What may be recomputed instead is not certain.
    const std::int64_t kept =
        std::max(book_.sequence(id).input_blocks, book_.table(id).recomputable());
    const std::int64_t blocks =
        std::max<std::int64_t>(book_.table(id).up_to(BlockPlace::kHost) - kept, 0);
    ++early.requests;
    early.blocks += blocks;
    early.largest = std::max(early.largest, blocks);
    const auto windowed_to = [&](std::int64_t end) {
      return windowed_on_host(static_cast<double>(end * memory_.limits.block_tokens),
                              static_cast<double>(request.place.context + 1));
    };
    const double windowed = windowed_to(kept + blocks) - windowed_to(kept);
    const auto crossing =
        static_cast<double>(crossing_blocks(kept + blocks) - crossing_blocks(kept));
    work.early_bytes += host_share_ * moved_bytes(crossing) + windowed * memory_.record_token;
  }
  // Weights that cross the link in this step. Fetched ahead, from the last layer on to the first of
  // the next step; as many layers as there are slots stay once they are there.
  [[nodiscard]] double streamed_bytes() const {
    const bool first = result_.steps_taken == 0;
    std::int64_t layers = memory_.streamed_layers;
    if (memory_.placement.overlap && layers <= kWeightSlots && !first) layers = 0;
    if (memory_.placement.overlap && layers > kWeightSlots && first) ++layers;
    return static_cast<double>(job_.model.layer_weights) * static_cast<double>(layers);
  }

  // A request samples once its prefill is complete.
  void grow(RequestState& request) {
    PlacedRequest& place = request.place;
    place.context += place.step_tokens;
    if (!place.prefilling()) ++request.generated;
    const std::span<const TokenId> prefix = job_.requests[request.index].prefix;
    if (prefix.empty()) return;
    // Where the prompt goes on, the prefix's last token is no other request's.
    const auto tokens = static_cast<std::int64_t>(prefix.size());
    const std::int64_t shared = tokens < place.prompt_tokens ? tokens - 1 : tokens;
    const std::int64_t exact = job_.prompt_units.causal_tokens(std::min(place.context, shared));
    book_.publish(place.id, prefix.first(static_cast<std::size_t>(exact)));
  }

  void account(const StepWork& work, SimulatedStep& record) {
    record.seconds = record.lanes.step;
    record.running = static_cast<std::int64_t>(running_.size());
    const double gathered =
        work.gathered_records * memory_.record_layer + work.gathered_inputs * work.input_bytes;
    record.h2d_bytes = work.h2d_bytes + gathered;
    record.d2h_bytes = work.d2h_bytes;
    std::int64_t device_blocks = 0;
    std::int64_t offloaded_blocks = 0;
    double host_bytes = 0.0;
    const auto count = [&](const RequestState& request) {
      const SequenceId id = request.place.id;
      if (!id.valid()) return;  // dropped
      device_blocks += book_.table(id).on_device() +
                       memory_.limits.windows.blocks * book_.sequence(id).windows();
      host_bytes += moved_bytes(static_cast<double>(book_.table(id).on_host()));
      offloaded_blocks += book_.table(id).offloaded();
      const std::int64_t with_inputs = std::min(
          book_.sequence(id).input_blocks * memory_.limits.block_tokens, request.place.context);
      host_bytes += static_cast<double>(with_inputs) * memory_.input_token;
    };
    for (const RequestState& request : running_) count(request);
    for (const RequestState& request : preempted_) count(request);
    record.device_kv_bytes =
        static_cast<std::uint64_t>(block_bytes(device_blocks) + block_bytes(offloaded_blocks) -
                                   moved_bytes(static_cast<double>(offloaded_blocks)));
    record.host_kv_bytes = static_cast<std::uint64_t>(host_bytes);
    result_.device_peak =
        std::max(result_.device_peak, memory_.fixed_device + record.device_kv_bytes);
    result_.host_peak = std::max(result_.host_peak, memory_.fixed_host + record.host_kv_bytes);
    TRIPHASE_CHECK(job_.division || (result_.device_peak <= job_.device_memory &&
                                     result_.host_peak <= job_.host_memory),
                   "simulated budgets hold");
    LaneTimes& sum = result_.lanes;
    sum.compute += record.lanes.compute;
    sum.recompute += record.lanes.recompute;
    sum.h2d += record.lanes.h2d;
    sum.d2h += record.lanes.d2h;
    sum.host += record.lanes.host;
    sum.serial += record.lanes.serial;
    sum.step += record.lanes.step;
    sum.extrapolated = sum.extrapolated || record.lanes.extrapolated;
    const auto rows =
        static_cast<double>(std::max<std::int64_t>(work.prefill_rows + work.decode_rows, 1));
    const double prefill = record.seconds * static_cast<double>(work.prefill_rows) / rows;
    result_.prefill_seconds += prefill;
    result_.decode_seconds += record.seconds - prefill;
    result_.h2d_bytes += record.h2d_bytes;
    result_.d2h_bytes += record.d2h_bytes;
    result_.recomputed_tokens += work.recompute_tokens;
    result_.inputs_h2d_bytes +=
        work.recompute_tokens * memory_.input_layer * static_cast<double>(memory_.limits.layers);
    ++result_.phase_steps[static_cast<std::size_t>(record.phase) - 1];
    if (job_.keep_steps) result_.steps.push_back(record);
  }

  void end_finished() {
    std::erase_if(running_, [&](const RequestState& request) {
      if (request.generated < job_.requests[request.index].output_tokens) return false;
      KvMoves moves;  // copies cost what they cost already
      book_.release(request.place.id, moves);
      result_.generated_tokens += static_cast<std::uint64_t>(request.generated);
      return true;
    });
  }

  const PlacementPolicy& policy_;
  const CostModel& cost_;
  const SimulatedJob& job_;
  const double whole_share_;  // of the layers
  const JobMemory memory_;
  const double host_share_;  // of a block's layers: those that read all of it
  SimulationResult result_;
  KvBook book_;
  std::vector<std::size_t> waiting_;  // into the job's requests
  std::uint64_t admissions_ = 0;
  std::vector<RequestState> running_;
  std::vector<RequestState> preempted_;
  std::int64_t group_ = 0;        // of the requests that read whole blocks, counted over all steps
  std::int64_t group_pages_ = 0;  // at most
  std::int64_t pages_in_group_ = 0;
  std::vector<std::int64_t> read_group_;  // by block number: the last group that read it
  std::vector<std::int64_t> crossing_;    // of the first n shared blocks those not read before
};

}  // namespace

SimulationResult simulate(const PlacementPolicy& policy, const CostModel& cost,
                          const SimulatedJob& job) {
  TRIPHASE_CHECK(!job.requests.empty() && job.batch_size > 0, "a job to simulate");
  return Simulation(policy, cost, job).run();
}

}  // namespace triphase
