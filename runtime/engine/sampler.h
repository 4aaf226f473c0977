#pragma once

// Ops::sample with the memory that it needs on the host: turns logits on the backend's device into
// tokens and scores. Grows to the largest batch so far. Not thread safe; the backend must outlive
// it.

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/trace.h"
#include "kernels/sampling.h"
#include "memory/memory_pool.h"
#include "runtime/backend.h"

namespace triphase {

class Sampler {
 public:
  // `vocab`: columns of the logits to come.
  Sampler(Backend& backend, std::int64_t vocab);

  // What a call draws: valid from wait() to the second call after it.
  struct Drawn {
    std::span<const SampleResult> results;
    Event* copied = nullptr;
  };

  // Queues a result for each row of logits.
  [[nodiscard]] Drawn sample(ConstMatrix logits, std::span<const SampleRow> rows);
  // Waits for the results, and collects the spans of what the stream did until then.
  void wait(const Drawn& drawn);
  // A copy of the logits in host memory, valid until the next call. Waits for the stream.
  [[nodiscard]] ConstMatrix on_host(ConstMatrix logits);
  // Records what a device does for sample(), and the wait for it; null: off.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  struct Results {
    Buffer buffer;
    std::unique_ptr<Event> copied;
  };

  // `buffer` with room for so many bytes; its content is undefined.
  std::byte* at_least(std::size_t bytes, Buffer& buffer);

  Backend* backend_;
  MemoryPool memory_;
  Buffer workspace_;
  std::array<Results, 2> results_;  // calls take turns
  std::size_t turn_ = 0;
  Buffer logits_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
