#include "scheduler/simulator/simulator.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "scheduler/batch_planner.h"
#include "scheduler/placement/placement_ledger.h"
#include "scheduler/simulator/job_memory.h"

namespace triphase {
namespace {

struct Line {
  std::size_t index = 0;       // into the job's lines
  std::int64_t generated = 0;  // tokens sampled so far
  RunningSequence place;
  SuspendMode mode = SuspendMode::kSwap;  // while suspended
  // Blocks on their way, which are read where they were until they have arrived.
  std::int64_t leaving = 0;
  bool decoded = false;  // in the step before
  bool on_host = false;  // decoded rows are attended there, and new tokens stored as they are made
  std::int64_t returning = 0;
};

std::size_t index_of(const StepView& view, SequenceId id) {
  return static_cast<std::size_t>(std::ranges::find(view.running, id, &RunningSequence::id) -
                                  view.running.begin());
}

// How many waiting prompts a policy sees; the engine looks ahead twice a batch.
constexpr std::size_t kLookAhead = 2;

class Simulation {
 public:
  Simulation(const PlacementPolicy& policy, const CostModel& cost, const SimulatedJob& job)
      : policy_(policy),
        cost_(cost),
        job_(job),
        memory_(divide_memory(policy, job)),
        free_device_(memory_.limits.device_pages),
        free_host_(memory_.limits.host_pages),
        free_input_(memory_.limits.input_pages) {}

  SimulationResult run() {
    result_.infeasible = memory_.infeasible;
    result_.kv_dtype = memory_.kv_dtype;
    result_.streamed_layers = memory_.streamed_layers;
    if (memory_.placement.host_kv == HostKvUse::kCpuAttention && !cost_.can_attend_on_host()) {
      result_.infeasible = "the profile does not say what attention on the host costs";
    }
    if (result_.infeasible.empty()) {
      while (next_ < job_.lines.size() || !running_.empty() || !suspended_.empty()) step();
      result_.seconds = result_.lanes.step;
      result_.tokens_per_second = static_cast<double>(result_.generated_tokens) / result_.seconds;
    }
    return std::move(result_);
  }

 private:
  // What the step computes of every running line.
  void plan_rows() {
    std::vector<SequenceProgress> progress;
    for (const Line& line : running_) {
      const RunningSequence& place = line.place;
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
    StepView view{.step = result_.steps_taken,
                  .limits = memory_.limits,
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
                                .input_blocks = line.place.input_blocks});
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
    return static_cast<double>(blocks * memory_.limits.block_tokens) * memory_.kv_token;
  }

  // Bytes of whole blocks that cross the link.
  [[nodiscard]] double moved_bytes(std::int64_t blocks) const {
    return static_cast<double>(blocks * memory_.limits.block_tokens) * memory_.record_token;
  }

  // Everything on its way has arrived.
  void settle() {
    leaving_ = 0;
    for (Line& line : running_) line.leaving = line.returning = 0;
  }

  // Blocks on their way out hold their pages until they have arrived; where the step's tokens lack
  // these pages, it waits for them.
  void make_room() {
    std::int64_t free = free_device_ - leaving_ * memory_.limits.layers;
    for (const Line& line : running_) {
      const RunningSequence& place = line.place;
      if (place.step_tokens == 0) continue;
      const std::int64_t needed = added_blocks(place);
      const std::int64_t beyond = std::max<std::int64_t>(needed - place.device_reserved, 0);
      if (beyond * memory_.limits.layers > std::max<std::int64_t>(free, 0)) {
        free += leaving_ * memory_.limits.layers;
        settle();
      }
      free -= beyond * memory_.limits.layers;
    }
  }

  // Blocks that the step's tokens of a sequence begin.
  [[nodiscard]] std::int64_t added_blocks(const RunningSequence& place) const {
    return std::max<std::int64_t>(
        memory_.limits.blocks_for(place.context + place.step_tokens) - place.blocks(), 0);
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
          work.h2d_bytes += moved_bytes(resume->device_blocks);
        }
        started.push_back(*found);
        suspended_.erase(found);
      } else if (const auto* admit = std::get_if<Admit>(&action)) {
        Line line{.index = next_ + admitted++};
        line.on_host =
            memory_.placement.host_kv == HostKvUse::kCpuAttention && admit->host_blocks > 0;
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
    if (action.mode == SuspendMode::kSwap) {
      work.d2h_bytes += moved_bytes(place.device_blocks);
      leaving_ += place.device_blocks;
      place.host_blocks += place.device_blocks;
    } else {
      settle();  // nothing ends while it moves
      result_.repeated_tokens += static_cast<std::uint64_t>(place.context);
      // The last token it sampled is computed with the others.
      if (!place.prefilling()) place.prefill_tokens = place.context + 1;
      place.context = 0;
      place.host_blocks = place.recompute_blocks = place.input_blocks = 0;
    }
    place.device_blocks = place.device_reserved = place.host_reserved = 0;
    line.decoded = false;
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
    work.int8_kv = result_.kv_dtype == DType::kInt8;
    work.fetch = job_.fetch;
    const bool dense = reads_whole_blocks();
    const auto layers = static_cast<double>(memory_.limits.layers);
    double prefill_context = 0.0;
    EarlyReads early;
    SimulatedStep record;
    for (Line& line : running_) {
      RunningSequence& place = line.place;
      const std::int64_t rows = place.step_tokens;
      if (rows == 0) continue;
      // What is on its way is read where it was.
      const std::int64_t away_blocks = place.away_blocks() - line.leaving + line.returning;
      const auto away = static_cast<double>(away_blocks * memory_.limits.block_tokens);
      const double again_share = away_blocks == 0 ? 0.0
                                                  : static_cast<double>(place.recompute_blocks) /
                                                        static_cast<double>(away_blocks);
      double fetched = away;
      if (place.prefilling()) {
        work.prefill_rows += rows;
        prefill_context += static_cast<double>(rows) * static_cast<double>(place.context);
      } else {
        ++work.decode_rows;
        fetched = touched_away(place.context + 1, away);
        const double touched =
            std::max(std::floor(static_cast<double>(place.context + 1) * job_.caching_ratio), 1.0);
        if (!line.on_host) work.touched_tokens += touched;
      }
      const bool attend_on_host = line.on_host && !place.prefilling();
      const bool whole = dense || place.prefilling();
      const double again =
          attend_on_host ? 0.0
          : whole        ? static_cast<double>(place.recompute_blocks * memory_.limits.block_tokens)
                         : fetched * again_share;
      if (attend_on_host) {
        // The query goes there and the result comes back.
        if (job_.handicaps.copies_host_kv) count_workspace(place, work);
        ++work.host_attention_rows;
        work.host_attention_tokens += static_cast<double>(place.context + 1);
        work.d2h_bytes += memory_.query_row;
        work.h2d_bytes += memory_.query_row;
      } else if (whole) {
        if (job_.handicaps.copies_device_kv) count_copies(line, away_blocks, work);
        work.h2d_bytes += (fetched - again) * memory_.record_token + again * memory_.input_token;
        if (!place.prefilling()) count_early(line, early, work);
      } else {
        work.gathered_records += layers * (fetched - again);
        work.gathered_inputs += layers * again;
      }
      if (again > 0.0) {
        ++work.recompute_rows;
        work.recompute_tokens += again;
      }
      const std::int64_t with_inputs = place.input_blocks * memory_.limits.block_tokens;
      const std::int64_t saved = std::clamp<std::int64_t>(with_inputs - place.context, 0, rows);
      work.d2h_bytes += static_cast<double>(saved) * memory_.input_token;
      result_.inputs_d2h_bytes += static_cast<double>(saved) * memory_.input_token;
      if (line.on_host) {
        work.d2h_bytes += static_cast<double>(rows) * memory_.record_token;
      }
      if (work.int8_kv) work.quantized_tokens += static_cast<double>(rows);
      record.phase = std::max(record.phase, place.recompute_blocks > 0 ? Phase::kThree
                                            : place.host_blocks > 0    ? Phase::kTwo
                                                                       : Phase::kOne);
      record.longest_context = std::max(record.longest_context, place.context + rows);
      line.decoded = !place.prefilling();
      grow(line);
    }
    if (work.prefill_rows > 0) {
      work.prefill_context = prefill_context / static_cast<double>(work.prefill_rows);
    }
    work.record_bytes = memory_.record_layer;
    work.input_bytes = memory_.input_token / layers;
    if (memory_.placement.gpu_batch > 0 && work.decode_rows > 0) {
      work.decode_groups =
          (work.decode_rows + memory_.placement.gpu_batch - 1) / memory_.placement.gpu_batch;
    }
    work.h2d_bytes += streamed_bytes();
    work.h2d_copies = work.d2h_copies = layers;
    record.lanes = cost_.step(work, {.layers = memory_.limits.layers,
                                     .overlap = memory_.placement.overlap,
                                     .early_layers = early_layers(early),
                                     .pinned = !job_.handicaps.pageable,
                                     .sync_each_layer = job_.handicaps.sync_each_layer});
    account(work, record);
  }

  // A decoded row's KV is copied before it is read where all of it is on the device to stay; of an
  // INT8 line what is closed.
  void count_copies(const Line& line, std::int64_t away_blocks, StepWork& work) {
    const RunningSequence& place = line.place;
    if (place.prefilling() || away_blocks > 0 || place.host_reserved > 0) return;
    const std::int64_t blocks = work.int8_kv ? place.context / memory_.limits.block_tokens
                                             : memory_.limits.blocks_for(place.context + 1);
    work.copied_tokens += static_cast<double>(blocks * memory_.limits.block_tokens);
    result_.copied_bytes += moved_bytes(blocks);
  }

  // What is stored is read once and written and read once more in F32. Whole blocks are.
  void count_workspace(const RunningSequence& place, StepWork& work) {
    const auto stored = static_cast<double>(dtype_bytes(result_.kv_dtype));
    work.host_attention_passes = (stored + 2.0 * sizeof(float)) / stored;
    const std::int64_t blocks = memory_.limits.blocks_for(place.context + 1);
    result_.workspace_bytes += moved_bytes(blocks) / stored * sizeof(float);
  }

  // Whole blocks that the step before may fetch for this one (models/next_step.h).
  struct EarlyReads {
    std::int64_t lines = 0;
    std::int64_t blocks = 0;  // of one layer
    std::int64_t largest = 0;
  };
  void count_early(const Line& line, EarlyReads& early, StepWork& work) const {
    if (!line.decoded || job_.caching_ratio < 1.0) return;
    const RunningSequence& place = line.place;
    // What may be recomputed instead is not certain.
    const std::int64_t kept = std::max(place.input_blocks, place.recompute_blocks);
    const std::int64_t blocks =
        std::max<std::int64_t>(place.away_blocks() - line.leaving - kept, 0);
    ++early.lines;
    early.blocks += blocks;
    early.largest = std::max(early.largest, blocks);
    work.early_bytes += moved_bytes(blocks);
  }
  // One layer where memory is divided here; else as a run's staging pages have it, of which a
  // quarter or a line's blocks are being read and each line may need one more.
  [[nodiscard]] double early_layers(const EarlyReads& early) const {
    if (!job_.division) return 1.0;
    if (early.blocks == 0) return 0.0;
    const std::int64_t pages = job_.division->staging_pages;
    const std::int64_t ahead = pages - std::max(pages / 4, early.largest);
    const double most = static_cast<double>(memory_.limits.layers - 1);
    return std::clamp(static_cast<double>(ahead) / static_cast<double>(early.blocks + early.lines),
                      0.0, most);
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

  // The step's tokens get their blocks; a line samples once its prefill is complete.
  void grow(Line& line) {
    RunningSequence& place = line.place;
    const std::int64_t added = added_blocks(place);
    place.context += place.step_tokens;
    const std::int64_t reserved = std::min(added, place.device_reserved);
    place.device_reserved -= reserved;
    place.device_blocks += added;
    free_device_ -= (added - reserved) * memory_.limits.layers;
    if (!place.prefilling()) ++line.generated;
  }

  void account(const StepWork& work, SimulatedStep& record) {
    record.seconds = record.lanes.step;
    record.running = static_cast<std::int64_t>(running_.size());
    const double gathered =
        work.gathered_records * memory_.record_layer + work.gathered_inputs * work.input_bytes;
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
          std::min(line.place.input_blocks * memory_.limits.block_tokens, line.place.context);
      host_bytes += static_cast<double>(with_inputs) * memory_.input_token;
    };
    for (const Line& line : running_) count(line);
    for (const Line& line : suspended_) count(line);
    record.device_kv_bytes = static_cast<std::uint64_t>(
        block_bytes(device_blocks) + block_bytes(away_blocks) - moved_bytes(away_blocks));
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
    result_.inputs_h2d_bytes += work.recompute_tokens * memory_.input_token;
    ++result_.phase_steps[static_cast<std::size_t>(record.phase) - 1];
    if (job_.keep_steps) result_.steps.push_back(record);
  }

  void end_finished() {
    std::erase_if(running_, [&](const Line& line) {
      if (line.generated < job_.lines[line.index].output_tokens) return false;
      const RunningSequence& place = line.place;
      free_device_ += (place.device_blocks + place.device_reserved) * memory_.limits.layers;
      free_host_ += (place.host_blocks + place.host_reserved) * memory_.limits.layers;
      free_input_ += place.input_blocks * memory_.limits.layers;
      result_.generated_tokens += static_cast<std::uint64_t>(line.generated);
      return true;
    });
  }

  const PlacementPolicy& policy_;
  const CostModel& cost_;
  const SimulatedJob& job_;
  SimulationResult result_;
  const JobMemory memory_;
  std::int64_t free_device_;
  std::int64_t free_host_;
  std::int64_t free_input_;
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
