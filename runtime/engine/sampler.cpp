#include "runtime/engine/sampler.h"

#include "base/stream_spans.h"
#include "kernels/sizing/sample_workspace.h"

namespace triphase {

Sampler::Sampler(Backend& backend, std::int64_t vocab)
    : backend_(&backend), memory_(backend.host(), MemoryTier::kHost, UINT64_MAX) {
  if (const std::uint64_t bytes = sample_workspace_bytes(backend.machine(), vocab); bytes > 0) {
    workspace_ = memory_.allocate(bytes, MemoryTag::kWorkspace);
  }
  for (Results& results : results_) results.copied = backend.device().make_event();
}

std::byte* Sampler::at_least(std::size_t bytes, Buffer& buffer) {
  if (bytes > buffer.bytes()) {
    // Pinned memory goes, for which the whole device waits.
    if (buffer.bytes() > 0) backend_->stream().synchronize();
    buffer.reset();
    buffer = memory_.allocate(bytes, MemoryTag::kStaging);
  }
  return buffer.data();
}

Sampler::Drawn Sampler::sample(ConstMatrix logits, std::span<const SampleRow> rows) {
  if (rows.empty()) return {};
  turn_ = (turn_ + 1) % results_.size();
  const std::size_t bytes = rows.size() * sizeof(SampleResult);
  auto* results = reinterpret_cast<SampleResult*>(at_least(bytes, results_[turn_].buffer));
  {
    const bool runs_later = !backend_->device().runs_at_once();
    const TraceSpan span(trace_, TraceLane::kCompute, "sample", runs_later);
    backend_->ops().sample(logits, rows, results, {workspace_.data(), workspace_.bytes()},
                           backend_->stream());
  }
  Event* const copied = results_[turn_].copied.get();
  copied->record(backend_->stream());
  return {{results, rows.size()}, copied};
}

void Sampler::wait(const Drawn& drawn) {
  if (drawn.copied == nullptr) return;
  {
    const bool runs_later = !backend_->device().runs_at_once();
    const TraceSpan span(trace_, TraceLane::kHost, "wait for device", runs_later);
    drawn.copied->synchronize();
  }
  if (trace_ != nullptr && trace_->stream_spans() != nullptr) trace_->stream_spans()->collect();
}

ConstMatrix Sampler::on_host(ConstMatrix logits) {
  if (logits.rows == 0) return logits;
  const std::size_t bytes =
      static_cast<std::size_t>((logits.rows - 1) * logits.row_stride + logits.cols) * sizeof(float);
  std::byte* copy = at_least(bytes, logits_);
  backend_->device().copy(copy, logits.data, bytes, backend_->stream());
  backend_->stream().synchronize();
  return {copy, logits.dtype, logits.rows, logits.cols, logits.row_stride};
}

}  // namespace triphase
