#include "scheduler/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/format_bytes.h"
#include "scheduler/batch_planner.h"
#include "scheduler/placement/placement_ledger.h"

namespace triphase {
namespace {

struct Line {
  std::size_t index = 0;       // into the job's lines
  std::int64_t generated = 0;  // tokens sampled so far
  RunningSequence place;
  SuspendMode mode = SuspendMode::kSwap;  // while suspended
  // Blocks on their way, which are read where they were until they have arrived.
  std::int64_t leaving = 0;
  bool on_host = false;  // decoded rows are attended there, and new tokens stored as they are made
  std::int64_t returning = 0;
};

// Layers' weights that the device holds while it streams: one is used while the next one arrives.
constexpr std::int64_t kWeightSlots = 2;

std::size_t index_of(const StepView& view, SequenceId id) {
  return static_cast<std::size_t>(std::ranges::find(view.running, id, &RunningSequence::id) -
                                  view.running.begin());
}

// How many waiting prompts a policy sees; the engine looks ahead twice a batch.
constexpr std::size_t kLookAhead = 2;

class Simulation {
 public:
  Simulation(const PlacementPolicy& policy, const CostModel& cost, const SimulatedJob& job)
      : policy_(policy), cost_(cost), job_(job) {}

  SimulationResult run() {
    if (prepare()) {
      while (next_ < job_.lines.size() || !running_.empty() || !suspended_.empty()) step();
      result_.seconds = result_.lanes.step;
      result_.tokens_per_second = static_cast<double>(result_.generated_tokens) / result_.seconds;
    }
    return std::move(result_);
  }

 private:
  // Divides the memory. False: the job cannot run; the result says why.
  bool prepare() {
    std::int64_t longest = 0;
    std::int64_t longest_prompt = 0;
    for (const SimulatedLine& line : job_.lines) {
      longest = std::max(longest, line.prompt_tokens + line.output_tokens - 1);
      longest_prompt = std::max(longest_prompt, line.prompt_tokens);
    }
    const ModelCosts& model = job_.model;
    const std::uint64_t scratch = scratch_bytes(model, job_.prefill_chunk + job_.batch_size,
                                                job_.batch_size, job_.weights_dtype);
    JobView view{.layers = model.layers,
                 .block_tokens = job_.block_tokens,
                 .batch_size = job_.batch_size,
                 .longest_tokens = longest,
                 .device_budget = job_.device_memory,
                 .host_budget = job_.host_memory,
                 .layer_weights = model.layer_weights,
                 .other_weights = model.other_weights,
                 .scratch = scratch,
                 .kv_bytes_per_token = static_cast<std::uint64_t>(
                     static_cast<double>(model.layers) *
                     kv_layer_bytes(model, job_.kv_dtype, job_.block_tokens))};
    if (job_.division && job_.division->placement) {
      statics_ = *job_.division->placement;
    } else {
      try {
        statics_ = policy_.start(view);
      } catch (const Error& error) {
        if (error.role() != ErrorRole::kResources) throw;
        result_.infeasible = error.found();
        return false;
      }
    }
    result_.kv_dtype = statics_.kv_dtype.value_or(job_.kv_dtype);
    result_.streamed_layers = statics_.streamed_layers;
    limits_.block_tokens = statics_.block_tokens.value_or(job_.block_tokens);
    if (job_.division) {
      result_.kv_dtype = job_.kv_dtype;
      result_.streamed_layers = job_.division->streamed_layers;
      limits_ = job_.division->limits;
    }
    kv_layer_ = kv_layer_bytes(model, result_.kv_dtype, limits_.block_tokens);
    kv_token_ = kv_layer_ * static_cast<double>(model.layers);
    record_ = kv_record_bytes(model, result_.kv_dtype);
    record_token_ = record_ * static_cast<double>(model.layers);
    input_token_ = input_layer_bytes(model) * static_cast<double>(model.layers);
    query_ = static_cast<double>(model.q_width * model.layers) * job_.activation_bytes;

    if (!job_.division && !divide(longest, longest_prompt, scratch)) return false;
    const std::int64_t allowed = policy_.longest_line(limits_);
    if (allowed < longest) {
      result_.infeasible = fmt::format("a line of {} tokens; --policy {} can hold {}", longest,
                                       policy_.name(), allowed);
      return false;
    }
    free_device_ = limits_.device_pages;
    free_host_ = limits_.host_pages;
    free_input_ = limits_.input_pages;
    return true;
  }

  bool divide(std::int64_t longest, std::int64_t longest_prompt, std::uint64_t scratch) {
    const ModelCosts& model = job_.model;
    limits_.layers = model.layers;
    limits_.batch_size = job_.batch_size;
    limits_.prefill_chunk = job_.prefill_chunk;
    limits_.touched_share = job_.caching_ratio;
    limits_.staging_group = statics_.gpu_batch;
    std::uint64_t staging = 0;
    if (statics_.host_tier && statics_.host_kv == HostKvUse::kStream) {
      const std::int64_t group = statics_.gpu_batch > 0 ? statics_.gpu_batch : job_.batch_size;
      const auto touched =
          static_cast<std::int64_t>(std::ceil(static_cast<double>(longest) * job_.caching_ratio));
      // Prompts are attended densely, a chunk's worth of sequences at a time.
      const std::int64_t prefill = std::max(longest_prompt, job_.prefill_chunk);
      limits_.staging_tokens = std::max(group * touched, prefill);
      if (job_.caching_ratio < 1.0) limits_.staging_tokens += group * longest_prompt;
      // Two layers: one is attended while the next one arrives. Prompts' share only while they are
      // being computed, inside the scratch of a chunk.
      staging = static_cast<std::uint64_t>(2.0 * kv_layer_ * static_cast<double>(group * touched));
    }
    const std::int64_t buffers = std::min(result_.streamed_layers, kWeightSlots);
    fixed_device_ = model.other_weights + scratch + staging +
                    model.layer_weights * static_cast<std::uint64_t>(
                                              model.layers - result_.streamed_layers + buffers);
    fixed_host_ = model.layer_weights * static_cast<std::uint64_t>(result_.streamed_layers);
    const double block = kv_token_ * static_cast<double>(limits_.block_tokens);
    if (fixed_device_ > job_.device_memory || fixed_host_ > job_.host_memory) {
      result_.infeasible = fmt::format(
          "weights, scratch and staging take {} of {} on the device and {} of {} on the host",
          format_bytes(fixed_device_), format_bytes(job_.device_memory), format_bytes(fixed_host_),
          format_bytes(job_.host_memory));
      return false;
    }
    double room = static_cast<double>(job_.device_memory - fixed_device_);
    if (statics_.host_tier) {
      divide_host(longest);
      // INT8's scales stay on the device wherever the block is; they must leave most of it.
      const double scales = (kv_token_ - record_token_) * static_cast<double>(limits_.block_tokens);
      if (scales > 0.0) {
        const auto most = static_cast<std::int64_t>(room / 2.0 / scales);
        limits_.host_pages = std::min(limits_.host_pages, most * limits_.layers);
      }
      room -= static_cast<double>(limits_.host_blocks()) * scales;
    }
    limits_.device_pages = static_cast<std::int64_t>(room / block) * model.layers;
    return true;
  }

  // At most what a full batch of longest lines could use, as the engine has it.
  void divide_host(std::int64_t longest) {
    const std::int64_t wanted = limits_.blocks_for(longest) * job_.batch_size;
    const double block = record_token_ * static_cast<double>(limits_.block_tokens);
    double room = static_cast<double>(job_.host_memory - fixed_host_);
    const double input_block = input_token_ * static_cast<double>(limits_.block_tokens);
    const std::int64_t inputs =
        std::min(policy_.input_blocks(limits_.block_tokens) * job_.batch_size,
                 static_cast<std::int64_t>(room / 2.0 / input_block));
    limits_.input_pages = inputs * limits_.layers;
    room -= static_cast<double>(inputs) * input_block;
    limits_.host_pages = std::min(static_cast<std::int64_t>(room / block), wanted) * limits_.layers;
  }

  // What the step computes of every running line.
  void plan_rows() {
    std::vector<SequenceProgress> progress;
    for (const Line& line : running_) {
      const RunningSequence& place = line.place;
      if (place.replaying()) {
        progress.push_back(
            {place.replay_tokens - place.replayed, place.replayed, limits_.block_tokens});
        continue;
      }
      progress.push_back(
          {std::max<std::int64_t>(place.prefill_tokens - place.context, 0), place.context});
    }
    const std::vector<std::int64_t> tokens =
        plan_step(progress, {.rows = job_.batch_size + job_.prefill_chunk,
                             .prefill_chunk = job_.prefill_chunk,
                             .units = job_.prompt_units});
    for (std::size_t index = 0; index < running_.size(); ++index) {
      running_[index].place.step_tokens = tokens[index];
    }
  }

  [[nodiscard]] StepView make_view() {
    plan_rows();
    for (Line& line : running_) line.place.replayable_blocks = replayable(line.place);
    StepView view{.step = result_.steps_taken,
                  .limits = limits_,
                  .free_device_pages = free_device_,
                  .free_host_pages = free_host_,
                  .free_input_pages = free_input_};
    for (const Line& line : running_) view.running.push_back(line.place);
    for (const Line& line : suspended_) {
      view.suspended.push_back({.id = line.place.id,
                                .mode = line.mode,
                                .prompt_tokens = line.place.prompt_tokens,
                                .prefill_tokens = line.place.prefill_tokens,
                                .context = line.place.context,
                                .max_tokens = line.place.max_tokens,
                                .recompute_blocks = line.place.recompute_blocks,
                                .host_blocks = line.place.host_blocks,
                                .input_blocks = line.place.input_blocks,
                                .dropped_blocks = line.place.replay_tokens / limits_.block_tokens});
    }
    if (running_.size() >= static_cast<std::size_t>(job_.batch_size)) return view;
    const std::size_t end =
        std::min(job_.lines.size(), next_ + kLookAhead * static_cast<std::size_t>(job_.batch_size));
    for (std::size_t index = next_; index < end; ++index) {
      const SimulatedLine& line = job_.lines[index];
      view.waiting.push_back({.prompt_tokens = line.prompt_tokens,
                              .max_tokens = line.prompt_tokens + line.output_tokens - 1});
    }
    return view;
  }

  // Lines share nothing here, and prompts are computed densely but for their units.
  [[nodiscard]] std::int64_t replayable(const RunningSequence& place) const {
    if (place.input_blocks > 0 || place.replaying()) return 0;
    const std::int64_t exact = job_.prompt_units.causal_tokens(place.prompt_tokens);
    return std::min(exact, place.context) / limits_.block_tokens;
  }

  void step() {
    settle();
    StepView view = make_view();
    PlacementActions actions = policy_.decide(view);
    validate_actions(view, actions);
    StepWork work;
    apply(view, actions, work);
    plan_rows();
    make_room();
    compute(work);
    if (job_.keep_steps) {
      result_.views.push_back(std::move(view));
      result_.actions.push_back(std::move(actions));
    }
    ++result_.steps_taken;
    end_finished();
  }

  [[nodiscard]] double block_bytes(std::int64_t blocks) const {
    return static_cast<double>(blocks * limits_.block_tokens) * kv_token_;
  }

  // Bytes of whole blocks that cross the link.
  [[nodiscard]] double moved_bytes(std::int64_t blocks) const {
    return static_cast<double>(blocks * limits_.block_tokens) * record_token_;
  }

  // Everything on its way has arrived.
  void settle() {
    leaving_ = 0;
    for (Line& line : running_) line.leaving = line.returning = 0;
  }

  // Blocks on their way out hold their pages until they have arrived; where the step's tokens lack
  // these pages, it waits for them.
  void make_room() {
    std::int64_t free = free_device_ - leaving_ * limits_.layers;
    for (const Line& line : running_) {
      const RunningSequence& place = line.place;
      if (place.step_tokens == 0) continue;
      const std::int64_t needed = added_blocks(place);
      const std::int64_t beyond = std::max<std::int64_t>(needed - place.device_reserved, 0);
      if (beyond * limits_.layers > std::max<std::int64_t>(free, 0)) {
        free += leaving_ * limits_.layers;
        settle();
      }
      free -= beyond * limits_.layers;
    }
  }

  // Blocks that the step's tokens of a sequence begin.
  [[nodiscard]] std::int64_t added_blocks(const RunningSequence& place) const {
    return std::max<std::int64_t>(
        limits_.blocks_for(place.context + place.new_tokens()) - place.blocks(), 0);
  }

  [[nodiscard]] Line& running_line(SequenceId id) {
    return *std::ranges::find_if(running_, [&](const Line& line) { return line.place.id == id; });
  }

  // Takes over what the ledger made of the actions, and counts the bytes they move.
  void apply(const StepView& view, const PlacementActions& actions, StepWork& work) {
    PlacementLedger ledger(view);
    std::vector<Line> started;
    std::vector<SequenceId> gone;
    std::size_t admitted = 0;
    for (const PlacementAction& action : actions) {
      if (const auto* offload = std::get_if<Offload>(&action)) {
        const std::int64_t blocks = offload->end_block - offload->first_block;
        Line& line = running_line(offload->sequence);
        if (!line.on_host) work.d2h_bytes += moved_bytes(blocks);
        line.leaving += blocks;
        leaving_ += blocks;
      } else if (const auto* reload = std::get_if<Reload>(&action)) {
        const std::int64_t blocks = reload->end_block - reload->first_block;
        work.h2d_bytes += moved_bytes(blocks);
        running_line(reload->sequence).returning += blocks;
      } else if (const auto* discard = std::get_if<Discard>(&action)) {
        // What only leaves is waited for first.
        const Line& line = running_line(discard->sequence);
        const std::int64_t away = ledger.running(index_of(view, discard->sequence)).away_blocks();
        if (discard->end_block > away - line.leaving) settle();
      } else if (const auto* suspend = std::get_if<Suspend>(&action)) {
        Line line = running_line(suspend->sequence);
        line.place = ledger.running(index_of(view, suspend->sequence));
        suspend_line(*suspend, line, work);
        gone.push_back(suspend->sequence);
        const auto place = std::ranges::find_if(
            suspended_, [&](const Line& other) { return other.index > line.index; });
        suspended_.insert(place, line);
      } else if (const auto* resume = std::get_if<Resume>(&action)) {
        const auto found = std::ranges::find_if(
            suspended_, [&](const Line& l) { return l.place.id == resume->sequence; });
        if (found->mode == SuspendMode::kSwap) {
          // It may itself be on its way out still.
          settle();
          const std::int64_t dropped = found->place.replay_tokens / limits_.block_tokens;
          work.h2d_bytes += moved_bytes(resume->device_blocks - dropped);
        }
        started.push_back(*found);
        suspended_.erase(found);
      } else if (const auto* admit = std::get_if<Admit>(&action)) {
        Line line{.index = next_ + admitted++};
        line.on_host = statics_.host_kv == HostKvUse::kCpuAttention && admit->host_blocks > 0;
        line.place.id = SequenceId(static_cast<std::int64_t>(line.index));
        started.push_back(line);
      }
      ledger.apply(action);
    }
    next_ += admitted;
    std::vector<Line> stay;
    for (std::size_t index = 0; index < running_.size(); ++index) {
      if (std::ranges::find(gone, running_[index].place.id) != gone.end()) continue;
      running_[index].place = ledger.running(index);
      stay.push_back(running_[index]);
    }
    running_ = std::move(stay);
    for (std::size_t index = 0; index < started.size(); ++index) {
      const SequenceId id = started[index].place.id;
      started[index].place = ledger.started()[index];
      started[index].place.id = id;
      running_.push_back(started[index]);
    }
    free_device_ = ledger.free_device_pages();
    free_host_ = ledger.free_host_pages();
    free_input_ = ledger.free_input_pages();
    result_.max_running = std::max(result_.max_running, static_cast<std::int64_t>(running_.size()));
  }

  void suspend_line(const Suspend& action, Line& line, StepWork& work) {
    ++result_.suspensions;
    line.mode = action.mode;
    RunningSequence& place = line.place;
    const std::int64_t dropped = action.dropped_blocks;
    if (action.mode == SuspendMode::kSwap) {
      const std::int64_t away = place.away_blocks();
      const std::int64_t moved = place.blocks() - std::max(away, dropped);
      // What is on its way out arrives before it is dropped.
      if (dropped > away - line.leaving && line.leaving > 0) settle();
      work.d2h_bytes += moved_bytes(moved);
      leaving_ += moved;
      place.host_blocks += place.device_blocks - dropped;
      place.replay_tokens = dropped * limits_.block_tokens;
      place.replayed = 0;
      result_.replayed_tokens += static_cast<std::uint64_t>(place.replay_tokens);
    } else {
      settle();  // nothing ends while it moves
      result_.repeated_tokens += static_cast<std::uint64_t>(place.context);
      // The last token it sampled is computed with the others.
      if (!place.prefilling()) place.prefill_tokens = place.context + 1;
      place.context = place.replay_tokens = place.replayed = 0;
      place.host_blocks = place.recompute_blocks = place.input_blocks = 0;
    }
    place.device_blocks = place.device_reserved = place.host_reserved = 0;
  }

  [[nodiscard]] bool reads_whole_blocks() const {
    return job_.caching_ratio >= 1.0 || job_.fetch == SparseFetch::kWholeBlocks;
  }

  // Host tokens of a decoding sequence that a step touches.
  [[nodiscard]] double touched_away(std::int64_t context, double away) const {
    if (reads_whole_blocks()) return away;
    const auto length = static_cast<double>(context);
    const double window = std::ceil(length * job_.caching_ratio / 2.0);
    const double global = std::floor(length * job_.caching_ratio) - window;
    return std::clamp(global * away / std::max(length - window, 1.0), 0.0, away) * job_.miss_rate;
  }

  void compute(StepWork& work) {
    work.int8_kv = result_.kv_dtype == DType::kI8;
    work.fetch = job_.fetch;
    const bool dense = reads_whole_blocks();
    const auto layers = static_cast<double>(limits_.layers);
    double prefill_context = 0.0;
    SimulatedStep record;
    for (Line& line : running_) {
      RunningSequence& place = line.place;
      const std::int64_t rows = place.step_tokens;
      if (rows == 0) continue;
      // What is on its way is read where it was.
      const std::int64_t away_blocks = place.away_blocks() - line.leaving + line.returning;
      const auto away = static_cast<double>(away_blocks * limits_.block_tokens);
      const double again_share = away_blocks == 0 ? 0.0
                                                  : static_cast<double>(place.recompute_blocks) /
                                                        static_cast<double>(away_blocks);
      double fetched = away;
      if (place.prefilling()) {
        work.prefill_rows += rows;
        const std::int64_t before = place.replaying() ? place.replayed : place.context;
        prefill_context += static_cast<double>(rows) * static_cast<double>(before);
      } else {
        ++work.decode_rows;
        fetched = touched_away(place.context + 1, away);
        const double touched =
            std::max(std::floor(static_cast<double>(place.context + 1) * job_.caching_ratio), 1.0);
        if (!line.on_host) work.touched_tokens += touched;
      }
      const bool attend_on_host = line.on_host && !place.prefilling();
      const bool whole = dense || place.prefilling();
      const double again = attend_on_host ? 0.0
                           : whole
                               ? static_cast<double>(place.recompute_blocks * limits_.block_tokens)
                               : fetched * again_share;
      if (attend_on_host) {
        // The query goes there and the result comes back.
        work.host_attention_tokens += static_cast<double>(place.context + 1);
        work.d2h_bytes += query_;
        work.h2d_bytes += query_;
      } else if (whole) {
        work.h2d_bytes += (fetched - again) * record_token_ + again * input_token_;
      } else {
        work.gathered_records += layers * (fetched - again);
        work.gathered_inputs += layers * again;
        work.add_channels(static_cast<double>(job_.channels), layers, away,
                          static_cast<double>(dtype_bytes(result_.kv_dtype)));
      }
      if (again > 0.0) {
        ++work.recompute_rows;
        work.recompute_tokens += again;
      }
      const std::int64_t with_inputs = place.input_blocks * limits_.block_tokens;
      const std::int64_t saved = std::clamp<std::int64_t>(with_inputs - place.context, 0, rows);
      work.d2h_bytes += static_cast<double>(saved) * input_token_;
      result_.inputs_d2h_bytes += static_cast<double>(saved) * input_token_;
      if (line.on_host) work.d2h_bytes += static_cast<double>(place.new_tokens()) * record_token_;
      if (work.int8_kv) work.quantized_tokens += static_cast<double>(rows);
      record.phase = std::max(record.phase, place.recompute_blocks > 0 ? Phase::kThree
                                            : place.host_blocks > 0    ? Phase::kTwo
                                                                       : Phase::kOne);
      record.longest_context = std::max(record.longest_context, place.context + place.new_tokens());
      grow(line);
    }
    if (work.prefill_rows > 0) {
      work.prefill_context = prefill_context / static_cast<double>(work.prefill_rows);
    }
    work.record_bytes = record_;
    work.input_bytes = input_token_ / layers;
    if (statics_.gpu_batch > 0 && work.decode_rows > 0) {
      work.decode_groups = (work.decode_rows + statics_.gpu_batch - 1) / statics_.gpu_batch;
    }
    work.h2d_bytes += streamed_bytes();
    work.h2d_copies = work.d2h_copies = layers;
    record.lanes = cost_.step(work, {.layers = limits_.layers,
                                     .overlap = statics_.overlap,
                                     .pinned = statics_.pinned,
                                     .sync_each_layer = statics_.sync_each_layer});
    account(work, record);
  }

  // Weights that cross the link in this step. Fetched ahead, from the last layer on to the first of
  // the next step; as many layers as there are slots stay once they are there.
  [[nodiscard]] double streamed_bytes() const {
    const bool first = result_.steps_taken == 0;
    std::int64_t layers = result_.streamed_layers;
    if (statics_.overlap && layers <= kWeightSlots && !first) layers = 0;
    if (statics_.overlap && layers > kWeightSlots && first) ++layers;
    return static_cast<double>(job_.model.layer_weights) * static_cast<double>(layers);
  }

  // The step's tokens get their blocks; a line samples once its prefill is complete.
  void grow(Line& line) {
    RunningSequence& place = line.place;
    if (place.replaying()) {
      place.replayed += place.step_tokens;
      if (place.replayed == place.replay_tokens) place.replay_tokens = place.replayed = 0;
      return;
    }
    const std::int64_t added = added_blocks(place);
    place.context += place.step_tokens;
    const std::int64_t reserved = std::min(added, place.device_reserved);
    place.device_reserved -= reserved;
    place.device_blocks += added;
    free_device_ -= (added - reserved) * limits_.layers;
    if (!place.prefilling()) ++line.generated;
  }

  void account(const StepWork& work, SimulatedStep& record) {
    record.seconds = record.lanes.step;
    record.running = static_cast<std::int64_t>(running_.size());
    const double gathered = work.gathered_records * record_ +
                            work.gathered_inputs * work.input_bytes + work.channel_bytes;
    record.h2d_bytes = work.h2d_bytes + gathered;
    record.d2h_bytes = work.d2h_bytes;
    std::int64_t device_blocks = 0;
    std::int64_t away_blocks = 0;
    double host_bytes = 0.0;
    const auto count = [&](const Line& line) {
      device_blocks += line.place.device_blocks;
      host_bytes += moved_bytes(line.place.host_blocks);
      away_blocks += line.place.away_blocks();
      const std::int64_t with_inputs =
          std::min(line.place.input_blocks * limits_.block_tokens, line.place.context);
      host_bytes += static_cast<double>(with_inputs) * input_token_;
    };
    for (const Line& line : running_) count(line);
    for (const Line& line : suspended_) count(line);
    record.device_kv_bytes = static_cast<std::uint64_t>(
        block_bytes(device_blocks) + block_bytes(away_blocks) - moved_bytes(away_blocks));
    record.host_kv_bytes = static_cast<std::uint64_t>(host_bytes);
    result_.device_peak = std::max(result_.device_peak, fixed_device_ + record.device_kv_bytes);
    result_.host_peak = std::max(result_.host_peak, fixed_host_ + record.host_kv_bytes);
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
    result_.channels_h2d_bytes += work.channel_bytes;
    result_.recomputed_tokens += work.recompute_tokens;
    result_.inputs_h2d_bytes += work.recompute_tokens * input_token_;
    const auto phase = static_cast<std::size_t>(record.phase) - 1;
    ++result_.phase_steps[phase];
    result_.phase_seconds[phase] += record.seconds;
    if (job_.keep_steps) result_.steps.push_back(record);
  }

  void end_finished() {
    std::erase_if(running_, [&](const Line& line) {
      if (line.generated < job_.lines[line.index].output_tokens) return false;
      const RunningSequence& place = line.place;
      free_device_ += (place.device_blocks + place.device_reserved) * limits_.layers;
      free_host_ += (place.host_blocks + place.host_reserved) * limits_.layers;
      free_input_ += place.input_blocks * limits_.layers;
      result_.generated_tokens += static_cast<std::uint64_t>(line.generated);
      return true;
    });
  }

  const PlacementPolicy& policy_;
  const CostModel& cost_;
  const SimulatedJob& job_;
  SimulationResult result_;
  StaticPlacement statics_;
  PlacementLimits limits_;
  double kv_layer_ = 0.0;  // bytes of K and V of a token in one layer
  double kv_token_ = 0.0;  // in all layers
  double record_ = 0.0;    // what of kv_layer_ crosses the link
  double record_token_ = 0.0;
  double input_token_ = 0.0;  // bytes of X of a token, all layers
  double query_ = 0.0;        // bytes of a row's queries, all layers
  std::uint64_t fixed_device_ = 0;
  std::uint64_t fixed_host_ = 0;
  std::int64_t free_device_ = 0;
  std::int64_t free_host_ = 0;
  std::int64_t free_input_ = 0;
  std::int64_t leaving_ = 0;  // blocks of all lines, suspended ones included
  std::size_t next_ = 0;      // first line that still waits
  std::vector<Line> running_;
  std::vector<Line> suspended_;
};

}  // namespace

SimulationResult simulate(const PlacementPolicy& policy, const CostModel& cost,
                          const SimulatedJob& job) {
  TRIPHASE_CHECK(!job.lines.empty() && job.batch_size > 0, "a job to simulate");
  return Simulation(policy, cost, job).run();
}

}  // namespace triphase
