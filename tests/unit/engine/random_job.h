#pragma once

// A random job for a tiny model as plain numbers, so that it can be printed, run again and made
// simpler: shape, memory, placement policy, attention method and lines.

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/job/request.h"
#include "tests/support/tiny_model.h"

namespace triphase {

// What can vary apart from the lines. Each has a simplest value (random_job.cpp).
enum class Knob : std::uint8_t {
  kLayers,
  kHeads,
  kGroup,  // query heads of a KV head
  kBlockTokens,
  kBatch,
  kChunk,
  kThreads,
  kDtype,  // 0: F32, 1: F16, 2: BF16
  kInt8,
  kMethod,  // AttentionKind
  kBudget,  // tokens that the method keeps
  kPolicy,  // JobPolicy
  kP1,
  kPhase2,  // steps from p1 to p2
  kAlpha,   // percent
  kBeta,    // percent
  kWindow,
  kInputTokens,
  kDeviceBlocks,
  kHostBlocks,
  kStagingBlocks,
  kCacheBlocks,
  kStreamedLayers,
  kNoPrefetch,
  kLink,           // MB/s; 0: none is emulated
  kSliding,        // tokens of sliding windows; 0: none
  kSlidingLayers,  // a bit for each layer that has one
  kApart,          // 1: these keep KV as far as their windows reach, in jobs that may
};
inline constexpr std::size_t kKnobs = 28;

enum class JobPolicy : std::uint8_t {
  kDeviceOnly,
  kTriphase,
  kAccelerate,
  kFlexGen,
  kVllmDrop,
  kVllmSwap,
  kZero
};

struct JobLine {
  std::int64_t prompt = 1;
  std::int64_t output = 1;
  std::int64_t shared = 0;   // leading tokens that all lines have in common, at most `prompt`
  std::int64_t sampled = 0;  // 1: by temperature
  friend bool operator==(const JobLine&, const JobLine&) = default;
};

struct RandomJob {
  std::array<std::int64_t, kKnobs> knobs{};
  std::vector<JobLine> lines;
  [[nodiscard]] std::int64_t operator[](Knob knob) const {
    return knobs[static_cast<std::size_t>(knob)];
  }
  [[nodiscard]] std::int64_t& operator[](Knob knob) {
    return knobs[static_cast<std::size_t>(knob)];
  }
  friend bool operator==(const RandomJob&, const RandomJob&) = default;
};

[[nodiscard]] RandomJob random_job(std::mt19937& random);
// Jobs that differ from it in one thing, which is nearer to its simplest value, or a line less.
[[nodiscard]] std::vector<RandomJob> simpler_jobs(const RandomJob& job);
// Every knob that is not at its simplest, and the lines.
[[nodiscard]] std::string to_text(const RandomJob& job);

[[nodiscard]] ModelConfig config_of(const RandomJob& job);
[[nodiscard]] TinyModelOptions options_of(const RandomJob& job);
// The same model and method with everything on the device, one line at a time and in one chunk.
[[nodiscard]] TinyModelOptions alone_options_of(const RandomJob& job);
// The lines that the memory can hold.
[[nodiscard]] std::vector<Request> requests_of(const RandomJob& job);

}  // namespace triphase
