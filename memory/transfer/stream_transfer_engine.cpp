#include "memory/transfer/stream_transfer_engine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/launch.h"
#include "base/stream_spans.h"

namespace triphase {
StreamTransferEngine::StreamTransferEngine(Device& device, Stream& compute, Movers movers)
    : device_(&device), compute_(&compute), movers_(std::move(movers)) {
  for (LaneState& lane : lanes_) {
    lane.stream = device.make_stream();
    lane.compute_point = device.make_event();
  }
}

StreamTransferEngine::~StreamTransferEngine() { drain(); }

void StreamTransferEngine::begin_step() {
  for (const LaneState& lane : lanes_) {
    if (LaunchQueue* launches = lane.stream->launches()) launches->begin_step();
  }
}

std::unique_ptr<Event> StreamTransferEngine::take_event() {
  if (spare_events_.empty()) return device_->make_event();
  std::unique_ptr<Event> event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

StreamTransferEngine::Transfer StreamTransferEngine::begin(LaneState& lane, const char* name,
                                                           TransferSize size) {
  // Compute work queued so far may read what this transfer writes, or write what it reads.
  lane.compute_point->record(*compute_);
  lane.stream->wait_for(*lane.compute_point);
  Transfer transfer{.begin = take_event(), .end = take_event(), .name = name, .size = size};
  transfer.begin->record(*lane.stream);
  return transfer;
}

Ticket StreamTransferEngine::end(Lane lane, Transfer transfer) {
  LaneState& state = at(lane);
  transfer.end->record(*state.stream);
  state.under_way.push_back(std::move(transfer));
  retire(lane);
  return {++state.submitted, lane};
}

Ticket StreamTransferEngine::move_tokens(Lane lane, const KvGeometry& geometry,
                                         std::span<const TokenRun> runs) {
  if (runs.empty()) return {};
  Transfer transfer = begin(at(lane), "tokens", transfer_size(geometry, runs));
  movers_[static_cast<std::size_t>(lane)]->move(lane, geometry, runs, *at(lane).stream);
  return end(lane, std::move(transfer));
}

Ticket StreamTransferEngine::move_pieces(Lane lane, std::span<const BytePiece> pieces) {
  if (pieces.empty()) return {};
  Transfer transfer = begin(at(lane), "bytes", transfer_size(lane, pieces));
  for (const BytePiece& piece : pieces) {
    device_->copy(piece.to, piece.from, piece.bytes, *at(lane).stream);
  }
  return end(lane, std::move(transfer));
}

bool StreamTransferEngine::reaches(const std::byte* records, std::size_t bytes) const {
  return movers_[static_cast<std::size_t>(Lane::kToDevice)]->reaches(records, bytes);
}

Ticket StreamTransferEngine::bring(const KvGeometry& geometry, const NameMissing& name) {
  LaneState& lane = at(Lane::kToDevice);
  Transfer transfer = begin(lane, "chosen tokens", {});
  movers_[static_cast<std::size_t>(Lane::kToDevice)]->bring(geometry, name(lane.stream.get()),
                                                            *lane.stream);
  return end(Lane::kToDevice, std::move(transfer));
}

Ticket StreamTransferEngine::bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                                          const RecomputedTokens& tokens) {
  if (tokens.most == 0) return {};
  LaneState& lane = at(Lane::kToDevice);
  Transfer transfer = begin(lane, "chosen inputs", {});
  movers_[static_cast<std::size_t>(Lane::kToDevice)]->bring_inputs(geometry, inputs, tokens,
                                                                   *lane.stream);
  return end(Lane::kToDevice, std::move(transfer));
}

const StreamTransferEngine::Transfer* StreamTransferEngine::find(Ticket ticket) const {
  const LaneState& lane = at(ticket.lane);
  const std::uint64_t later = lane.submitted - ticket.value;
  if (later >= lane.under_way.size()) return nullptr;
  return &lane.under_way[lane.under_way.size() - 1 - later];
}

void StreamTransferEngine::hold(Ticket ticket) {
  if (ticket.value == 0) return;
  if (const Transfer* transfer = find(ticket)) compute_->wait_for(*transfer->end);
}

void StreamTransferEngine::wait(Ticket ticket) {
  if (ticket.value == 0) return;
  const Transfer* transfer = find(ticket);
  if (transfer == nullptr) return;
  transfer->end->synchronize();
  retire(ticket.lane);
}

bool StreamTransferEngine::done(Ticket ticket) const {
  if (ticket.value == 0) return true;
  const Transfer* transfer = find(ticket);
  return transfer == nullptr || transfer->end->done();
}

void StreamTransferEngine::retire(Lane lane) {
  LaneState& state = at(lane);
  while (!state.under_way.empty() && state.under_way.front().end->done()) {
    Transfer& transfer = state.under_way.front();
    ++state.stats.transfers;
    state.stats.records += transfer.size.records;
    state.stats.bytes += transfer.size.bytes;
    if (trace_ != nullptr) record(lane, transfer);
    spare_events_.push_back(std::move(transfer.begin));
    spare_events_.push_back(std::move(transfer.end));
    state.under_way.pop_front();
  }
}

void StreamTransferEngine::record(Lane lane, const Transfer& transfer) {
  Clock::time_point& until = at(lane).traced_until;
  const StreamSpans& clock = *trace_->stream_spans();
  // Two transfers may be placed before and after the clock was corrected.
  const Clock::time_point begin = std::max(clock.time_of(*transfer.begin), until);
  const Clock::time_point end = std::max(clock.time_of(*transfer.end), begin);
  until = end;
  TraceEvent traced{.lane = lane == Lane::kToDevice ? TraceLane::kToDevice : TraceLane::kToHost,
                    .name = transfer.name,
                    .begin = begin,
                    .end = end};
  // The host does not know how many tokens the device named.
  if (transfer.size.records > 0) {
    traced.values = {{{"bytes", static_cast<std::int64_t>(transfer.size.bytes)},
                      {"records", static_cast<std::int64_t>(transfer.size.records)}}};
  }
  trace_->add(traced);
}

void StreamTransferEngine::drain() {
  for (const Lane lane : {Lane::kToDevice, Lane::kToHost}) {
    try {
      at(lane).stream->synchronize();
      retire(lane);
    } catch (const std::exception&) {
      // A failed device says so where its results are wanted; nothing moves any more.
      at(lane).under_way.clear();
    }
  }
}

LaneStats StreamTransferEngine::stats(Lane lane) const { return at(lane).stats; }

void StreamTransferEngine::set_trace(Trace* trace) {
  TRIPHASE_CHECK(trace == nullptr || trace->stream_spans() != nullptr, "a trace of this device");
  drain();
  trace_ = trace;
  if (trace == nullptr) return;
  for (LaneState& lane : lanes_) lane.traced_until = trace->start();
}

}  // namespace triphase
