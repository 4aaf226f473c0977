#pragma once

// FlexGen's policy search: an outer loop over GPU batch size and number of batches, and a linear
// program for the nine shares inside. PURE; solved by COIN-OR Clp.

#include <cstdint>
#include <optional>

#include "scheduler/flexgen/cost_equations.h"

namespace triphase::flexgen {

struct Policy {
  Workload workload;
  Shares shares;
  double seconds = 0.0;            // of one block, by the equations
  double tokens_per_second = 0.0;  // generated tokens
};

// Best shares for one block shape; nothing when no shares fit.
[[nodiscard]] std::optional<Policy> best_shares(const Model& model, const Workload& workload,
                                                const Machine& machine, Objective objective);

struct SearchLimits {
  std::int64_t max_gpu_batch = 256;
  std::int64_t max_block = 1024;
  std::int64_t fixed_block = 0;  // 0: free; else gpu_batch x num_batches is exactly this
};

// Best policy of all block shapes; nothing when not even one sequence fits.
[[nodiscard]] std::optional<Policy> search_policy(const Model& model, double prompt, double output,
                                                  const Machine& machine, Objective objective,
                                                  const SearchLimits& limits = {});

}  // namespace triphase::flexgen
