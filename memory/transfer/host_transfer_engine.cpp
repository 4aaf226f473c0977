#include "memory/transfer/host_transfer_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/start_thread.h"

namespace triphase {
namespace {

using Clock = std::chrono::steady_clock;

void copy_run(Lane lane, const KvGeometry& geometry, const TokenRun& run) {
  const std::int64_t page = run.slot / geometry.page_tokens;
  const std::int64_t offset = run.slot % geometry.page_tokens;
  const auto bytes = static_cast<std::size_t>(geometry.head_bytes);
  for (std::int32_t head = run.head_begin; head < run.head_begin + run.head_count; ++head) {
    const std::int64_t device =
        ((page * geometry.kv_heads + head) * geometry.page_tokens + offset) * geometry.head_bytes;
    const std::int64_t host =
        run.record * geometry.record_bytes() + std::int64_t{2} * head * geometry.head_bytes;
    for (std::int32_t token = 0; token < run.count; ++token) {
      std::byte* k = geometry.device_k + device + token * geometry.head_bytes;
      std::byte* v = geometry.device_v + device + token * geometry.head_bytes;
      std::byte* record = geometry.host + host + token * geometry.record_bytes();
      if (lane == Lane::kToDevice) {
        std::memcpy(k, record, bytes);
        std::memcpy(v, record + bytes, bytes);
      } else {
        std::memcpy(record, k, bytes);
        std::memcpy(record + bytes, v, bytes);
      }
    }
  }
}

}  // namespace

HostTransferEngine::HostTransferEngine(std::optional<EmulatedLink> link) : link_(link) {
  try {
    for (const Lane lane : {Lane::kToDevice, Lane::kToHost}) {
      at(lane).thread = start_thread([this, lane] { run_lane(lane); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

HostTransferEngine::~HostTransferEngine() { stop(); }

void HostTransferEngine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (LaneState& lane : lanes_) lane.queue.clear();
  }
  for (LaneState& lane : lanes_) {
    lane.work.notify_all();
    if (lane.thread.joinable()) lane.thread.join();
  }
}

Ticket HostTransferEngine::move_tokens(Lane lane, const KvGeometry& geometry,
                                       std::span<const TokenRun> runs) {
  if (runs.empty()) return {};
  Job job;
  job.geometry = geometry;
  {
    const std::lock_guard lock(mutex_);
    auto& spare = at(lane).spare;
    if (!spare.empty()) {
      job.runs = std::move(spare.back());
      spare.pop_back();
    }
  }
  job.runs.assign(runs.begin(), runs.end());
  job.size = transfer_size(geometry, runs);
  return submit(lane, std::move(job));
}

Ticket HostTransferEngine::move_pieces(Lane lane, std::span<const BytePiece> pieces) {
  if (pieces.empty()) return {};
  Job job;
  job.pieces.assign(pieces.begin(), pieces.end());
  job.size = transfer_size(lane, pieces);
  return submit(lane, std::move(job));
}

Ticket HostTransferEngine::bring(const KvGeometry& geometry, const NameMissing& name) {
  const MissingTokens missing = name(nullptr);
  runs_.clear();
  for (std::int32_t i = 0; i < *missing.count; ++i) {
    const bool whole = missing.first_heads == nullptr;
    runs_.push_back({.slot = missing.slots[i],
                     .record = missing.records[i],
                     .count = 1,
                     .head_begin = whole ? 0 : missing.first_heads[i],
                     .head_count = whole ? static_cast<std::int32_t>(geometry.kv_heads)
                                         : missing.head_counts[i]});
  }
  // In the order of the host's memory: neighbouring parts of a record become one piece.
  std::ranges::sort(runs_, {},
                    [](const TokenRun& run) { return std::pair(run.record, run.head_begin); });
  return move_tokens(Lane::kToDevice, geometry, runs_);
}

Ticket HostTransferEngine::bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                                        const RecomputedTokens& tokens) {
  pieces_.clear();
  const std::int64_t page_tokens = geometry.page_tokens;
  constexpr std::int64_t kScale = sizeof(float);
  const std::int64_t block_bytes = page_tokens * (inputs.width + kScale);
  const std::span<const RecomputedToken> listed(
      tokens.tokens, tokens.most == 0 ? 0 : static_cast<std::size_t>(*tokens.count));
  // First byte of the block's inputs, and the line of the slot under head 0.
  const auto block_of = [&](const RecomputedToken& token) {
    return inputs.blocks + token.input / page_tokens * block_bytes;
  };
  const auto line_of = [&](const RecomputedToken& token) {
    return token.slot / page_tokens * geometry.kv_heads * page_tokens + token.slot % page_tokens;
  };
  // Codes of neighbours are one piece on the host, and so are their scales.
  for (const RecomputedToken& token : listed) {
    const std::byte* codes = block_of(token) + token.input % page_tokens * inputs.width;
    for (std::int64_t at = 0, line = line_of(token); at < inputs.width;
         at += geometry.head_bytes, line += page_tokens) {
      const std::int64_t bytes = std::min(geometry.head_bytes, inputs.width - at);
      pieces_.push_back({geometry.device_k + line * geometry.head_bytes, codes + at,
                         static_cast<std::size_t>(bytes)});
    }
  }
  for (const RecomputedToken& token : listed) {
    pieces_.push_back(
        {geometry.device_v + line_of(token) * geometry.head_bytes,
         block_of(token) + page_tokens * inputs.width + token.input % page_tokens * kScale,
         static_cast<std::size_t>(kScale)});
  }
  return move_pieces(Lane::kToDevice, pieces_);
}

Ticket HostTransferEngine::submit(Lane lane, Job job) {
  LaneState& state = at(lane);
  Ticket ticket{.lane = lane};
  {
    const std::lock_guard lock(mutex_);
    ticket.value = ++state.submitted;
    if (trace_ != nullptr) job.queued = Clock::now();
    if (fail_in_ > 0 && --fail_in_ == 0) job.fails = true;
    state.queue.push_back(std::move(job));
  }
  state.work.notify_one();
  return ticket;
}

void HostTransferEngine::run_lane(Lane lane) {
  LaneState& state = at(lane);
  std::unique_lock lock(mutex_);
  while (true) {
    state.work.wait(lock, [&] { return stop_ || !state.queue.empty(); });
    if (stop_) return;
    Job job = std::move(state.queue.front());
    state.queue.pop_front();
    Trace* const trace = trace_;
    lock.unlock();
    const Clock::time_point start = Clock::now();
    std::exception_ptr failure;
    try {
      execute(lane, job);
    } catch (...) {
      failure = std::current_exception();
    }
    pace(state, job, start);
    if (trace != nullptr) record(*trace, lane, job, start, Clock::now());
    lock.lock();
    ++state.finished;
    if (failure) state.failures.emplace(state.finished, failure);
    ++state.stats.transfers;
    state.stats.records += job.size.records;
    state.stats.bytes += job.size.bytes;
    if (job.runs.capacity() > 0) state.spare.push_back(std::move(job.runs));
    state.progress.notify_all();
  }
}

void HostTransferEngine::execute(Lane lane, const Job& job) {
  if (job.fails) {
    throw Error(ErrorRole::kDevice, "E-DEV-TRANSFER",
                lane == Lane::kToHost ? "to host" : "to device")
        .found("a failure that a test asked for");
  }
  for (const BytePiece& piece : job.pieces) std::memcpy(piece.to, piece.from, piece.bytes);
  for (const TokenRun& run : job.runs) copy_run(lane, job.geometry, run);
}

void HostTransferEngine::pace(LaneState& lane, const Job& job, Clock::time_point start) const {
  if (!link_) return;
  const double seconds = static_cast<double>(job.size.bytes) / link_->bytes_per_second +
                         static_cast<double>(job.size.records) * link_->seconds_per_record;
  // A busy link's clock goes on from the transfer before, which makes up for sleeps that took too
  // long. An idle link's clock starts when the transfer did.
  constexpr auto kOvershoot = std::chrono::microseconds(300);
  if (start - lane.free_at > kOvershoot) lane.free_at = start;
  lane.free_at +=
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::this_thread::sleep_until(lane.free_at);
}

void HostTransferEngine::wait(Ticket ticket) {
  if (ticket.value == 0) return;
  LaneState& state = at(ticket.lane);
  std::unique_lock lock(mutex_);
  state.progress.wait(lock, [&] { return state.finished >= ticket.value; });
  const auto failure = state.failures.find(ticket.value);
  if (failure == state.failures.end()) return;
  const std::exception_ptr error = failure->second;
  state.failures.erase(failure);
  lock.unlock();
  std::rethrow_exception(error);
}

void HostTransferEngine::record(Trace& trace, Lane lane, const Job& job, Clock::time_point start,
                                Clock::time_point end) {
  trace.add(
      {.lane = lane == Lane::kToDevice ? TraceLane::kToDevice : TraceLane::kToHost,
       .name = job.runs.empty() ? "bytes" : "tokens",
       .begin = start,
       .end = end,
       .values = {
           {{"bytes", static_cast<std::int64_t>(job.size.bytes)},
            {"records", static_cast<std::int64_t>(job.size.records)},
            {"queued_us",
             std::chrono::duration_cast<std::chrono::microseconds>(start - job.queued).count()}}}});
}

void HostTransferEngine::drain() {
  std::unique_lock lock(mutex_);
  for (LaneState& lane : lanes_) {
    const std::uint64_t last = lane.submitted;
    lane.progress.wait(lock, [&] { return lane.finished >= last; });
  }
}

bool HostTransferEngine::done(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return at(ticket.lane).finished >= ticket.value;
}

LaneStats HostTransferEngine::stats(Lane lane) const {
  const std::lock_guard lock(mutex_);
  return at(lane).stats;
}

void HostTransferEngine::set_trace(Trace* trace) {
  drain();  // a lane may be about to record
  const std::lock_guard lock(mutex_);
  trace_ = trace;
}

void HostTransferEngine::fail_transfer(int nth) {
  const std::lock_guard lock(mutex_);
  fail_in_ = nth;
}

}  // namespace triphase
