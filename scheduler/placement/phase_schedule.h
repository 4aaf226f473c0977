#pragma once

// When a sequence changes phase, and which shares of it live on which tier: p1, p2, alpha and beta
// of ALISA's Table II. PURE value; made by the planner.

#include <cstdint>
#include <limits>
#include <optional>

#include "base/dtype.h"

namespace triphase {

struct PhaseSchedule {
  bool host_tier = true;  // false: every KV token stays on the device, Phase I to the end
  // Without a host tier: requests get blocks as their tokens need them, and who finds none makes
  // room. Else a request begins when all that it may need is free.
  bool on_demand = false;
  // Decode steps (tokens generated so far) at which Phases II and III begin; a number at or beyond
  // the output length means never. p1 = 0 offloads during prefill already.
  std::int64_t p1 = 0;
  std::int64_t p2 = 0;
  double alpha = 0.0;  // share of the context that lives on the host (full blocks only)
  // Instead of a constant alpha: from p1 on a sequence keeps so many tokens on the device and the
  // share on the host grows with its context; 0: alpha as published.
  std::int64_t device_tokens = 0;
  double beta = 0.0;  // share of the host's oldest tokens that is recomputed from X instead
  // The local window stays on the device: the larger of a number and a share of the context.
  std::int64_t window_tokens = 0;
  double window_share = 0.0;
  // Leading tokens of each sequence whose hidden states X are saved; 0 unless beta > 0.
  std::int64_t input_tokens = 0;
  std::int64_t streamed_layers = 0;  // layers whose weights live on the host
  std::optional<DType> kv_dtype;
  std::optional<std::int64_t> block_tokens;

  friend bool operator==(const PhaseSchedule&, const PhaseSchedule&) = default;
};

// All KV on the device, however long requests become.
[[nodiscard]] inline PhaseSchedule device_schedule() {
  constexpr std::int64_t kNever = std::numeric_limits<std::int32_t>::max();
  return {.host_tier = false, .p1 = kNever, .p2 = kNever};
}

enum class Phase : std::uint8_t { kOne = 1, kTwo = 2, kThree = 3 };

[[nodiscard]] constexpr const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kOne:
      return "Phase I";
    case Phase::kTwo:
      return "Phase II";
    case Phase::kThree:
      break;
  }
  return "Phase III";
}

// Phase of a sequence that has generated `decode_step` tokens (negative: prefill), by the schedule.
[[nodiscard]] inline Phase scheduled_phase(const PhaseSchedule& schedule,
                                           std::int64_t decode_step) {
  if (decode_step >= schedule.p2 && schedule.beta > 0.0) return Phase::kThree;
  if (decode_step >= schedule.p1 || schedule.p1 == 0) return Phase::kTwo;
  return Phase::kOne;
}

}  // namespace triphase
