#pragma once

// How a simulated job's memory is divided before its first step, by plan_memory() as a run's is:
// from the model's sizes, with an estimate of scratch. A job that brings a run's division keeps
// that one. PURE. Sizes in bytes unless they say otherwise.

#include <cstdint>
#include <string>

#include "scheduler/placement/placement_policy.h"
#include "scheduler/simulator/simulated_job.h"

namespace triphase {

struct JobMemory {
  std::string infeasible;     // why the job cannot run under the policy; empty: it can
  StaticPlacement placement;  // the policy's choices
  DType kv_dtype = DType::kF16;
  std::int64_t streamed_layers = 0;
  PlacementLimits limits;
  std::int64_t staging_pages = 0;  // through which KV on the host is read
  std::int64_t cached_tokens = 0;  // that the token cache has room for
  std::int64_t longest = 0;        // tokens of the longest request that can run

  // Layers that a block has: all, or those that keep all tokens where the others are apart.
  std::int64_t block_layers = 0;
  // Bytes of one token, in a block's layers unless the comment says otherwise.
  double kv_token = 0.0;      // K and V where they live, INT8's scales included
  double record_layer = 0.0;  // K and V as they cross the link, in one layer
  double record_token = 0.0;  // K and V as they cross the link
  double input_token = 0.0;   // saved hidden states X
  double input_layer = 0.0;   // X in one layer
  double query_row = 0.0;     // a row's queries, as they cross the link

  // What a step finds taken before any KV. Nothing where the division was given.
  std::uint64_t fixed_device = 0;
  std::uint64_t fixed_host = 0;
};

// Never throws for a job that does not fit: the result says why, and fields past what was decided
// until then keep their defaults. `job` has at least one request. `together`: as many layers are
// streamed as let the device alone hold a whole batch, if any number does.
[[nodiscard]] JobMemory divide_memory(const PlacementPolicy& policy, const SimulatedJob& job,
                                      bool together = false);

}  // namespace triphase
