#pragma once

// A job as the simulator gets it: its requests' lengths, what a token costs in bytes, and the
// budgets or a division of memory that is given. PURE.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "scheduler/attention/prompt_units.h"
#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct SimulatedRequest {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  // The tokens that it begins with like another one, and one more where the prompt has more; empty:
  // none shares blocks with it.
  std::vector<TokenId> prefix{};
  // Leading tokens whose KV it may take from another one: an attention method must see the others.
  std::int64_t shareable = std::numeric_limits<std::int64_t>::max();

  // Tokens whose KV is held at the end: the last one that is sampled is never attended.
  [[nodiscard]] std::int64_t kv_tokens() const { return prompt_tokens + output_tokens - 1; }
  // To find blocks by, the last of which ends before the last token.
  [[nodiscard]] std::span<const TokenId> findable() const {
    const auto all = static_cast<std::int64_t>(prefix.size());
    const std::int64_t count = shareable < all ? shareable + 1 : all;
    return std::span(prefix).first(static_cast<std::size_t>(count));
  }
};

// Memory that is divided already, as a run has it, instead of by the simulator.
struct MemoryDivision {
  PlacementLimits limits;
  std::int64_t streamed_layers = 0;
  std::optional<StaticPlacement> placement;  // what the policy chose then; nothing: it is asked
  std::int64_t staging_pages = 0;            // through which KV on the host is read
  std::int64_t cached_tokens = 0;            // that the token cache has room for
};

// What slowed the original systems, apart from their ideas. Only the simulator knows handicaps.
struct Handicaps {
  bool pageable = false;            // loads pay a blocking copy through pageable memory first
  bool sync_each_layer = false;     // a layer waits for its own copies
  bool copies_device_kv = false;    // KV that is on the device is copied there before every use
  bool copies_host_kv = false;      // KV that is attended on the host is copied to F32 before
  bool streams_all_layers = false;  // whatever the policy would keep on the device
};

struct SimulatedJob {
  ModelCosts model;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;    // where the policy does not choose
  std::int64_t block_tokens = 32;  // where the policy does not choose
  std::uint64_t device_memory = 0;
  std::uint64_t host_memory = 0;
  double activation_bytes = 2.0;  // of a query's element as it crosses the link
  std::int64_t batch_size = 0;
  std::int64_t prefill_chunk = kDerivedPrefillChunk;
  PromptUnits prompt_units;    // that a step does not cut
  double caching_ratio = 1.0;  // r: share of the context that a decode step attends
  double miss_rate = 1.0;      // share of the attended host tokens that crosses the link
  SparseFetch fetch = SparseFetch::kAhead;  // below r = 1
  double dense_layers = 0.0;                // shares, as in AttendedShares
  double recent_share = 0.5;
  bool transposed_k = false;  // kept beside K on the device; a division has it
  std::vector<SimulatedRequest> requests;
  Handicaps handicaps;
  std::optional<MemoryDivision> division;  // then the budgets above are not looked at
  bool keep_steps = false;                 // fill SimulationResult::steps
};

}  // namespace triphase
