#pragma once

// A job as planner and simulator see it: how long its requests are, and which share of their tokens
// a step attends.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/job/prompt_preparer.h"
#include "runtime/job/score_preparer.h"
#include "runtime/options/run_options.h"
#include "scheduler/attention/attended_shares.h"
#include "scheduler/memory_plan.h"
#include "scheduler/simulator/simulator.h"

namespace triphase {

// What a run with memory for requests of `longest` tokens takes, as it prepares them.
[[nodiscard]] PromptPreparer::Limits prompt_limits(const RunOptions& options,
                                                   const ModelBundle& model, std::int64_t longest);
[[nodiscard]] ScorePreparer::Limits score_limits(const RunOptions& options,
                                                 const ModelBundle& model, std::int64_t longest);

struct LineLimits {
  std::int64_t lines = 0;
  std::uint64_t bytes = 0;  // of the file
};

// The first requests that can run, up to either limit; those longer than `longest` tokens cannot.
// The prompts must be readable again. Output tokens are the most that a request may generate.
// Prefixes are those that they have in common with each other.
[[nodiscard]] std::vector<SimulatedRequest> read_request_lengths(const RunOptions& options,
                                                                 const ModelBundle& model,
                                                                 std::int64_t longest,
                                                                 const LineLimits& limits);

// The request that needs the most tokens. All requests of the file are read; those that look
// largest, kMostTokenized of them and 8 MiB of text, are prepared as a run prepares them. The
// prompts must be readable again. Nothing: none of those can run.
struct LongestRequest {
  SimulatedRequest lengths;
  bool certain = false;  // all requests were prepared: no other one is longer

  // Tokens to divide memory for. Where others may be longer, an eighth more.
  [[nodiscard]] std::int64_t context() const {
    const std::int64_t tokens = lengths.prompt_tokens + lengths.output_tokens;
    return certain ? tokens : tokens + tokens / 8;
  }
};
inline constexpr std::size_t kMostTokenized = 256;
[[nodiscard]] std::optional<LongestRequest> find_longest_request(const RunOptions& options,
                                                                 const ModelBundle& model);

// Which lines would become error records, and why: for --dry-run. `longest` as above.
struct LineFaults {
  std::int64_t lines = 0;  // that were looked at
  std::int64_t faulty = 0;
  std::vector<std::string> first;  // "line 3: E-MEM-LINE: ...", at most kShownFaults
};
inline constexpr std::size_t kShownFaults = 5;
[[nodiscard]] LineFaults find_line_faults(const RunOptions& options, const ModelBundle& model,
                                          std::int64_t longest, const LineLimits& limits);

// What a decode step attends half way through such a request.
[[nodiscard]] AttendedShares shares_half_way(const AttentionOptions& attention,
                                             const ModelConfig& config, std::int64_t input_tokens,
                                             std::int64_t output_tokens);

// How the attention method's tokens on the host come to the device; dense attention reads blocks.
// `has_columns`: there is a place for the K^T of all blocks, where the method keeps it.
[[nodiscard]] SparseFetch sparse_fetch(const AttentionOptions& attention, const ModelBundle& model,
                                       bool has_columns);
// Whether a plan may enter Phase III. Who named an unquantized KV type wants no rounding. Where a
// method reads every key to choose, whole blocks would be recomputed.
[[nodiscard]] inline bool may_recompute(RecomputeMode mode, std::optional<DType> named_kv_dtype,
                                        const AttentionOptions& attention, SparseFetch fetch) {
  if (mode == RecomputeMode::kOff) return false;
  const bool may_round = !named_kv_dtype || named_kv_dtype == DType::kInt8;
  if (mode == RecomputeMode::kAuto && !may_round) return false;
  return !attention.sparse() || fetch != SparseFetch::kWholeBlocks;
}
[[nodiscard]] inline bool has_columns(const MemoryPlan& memory, std::int64_t block_layers) {
  return memory.transposed_k_blocks >=
         memory.kv_pages / block_layers - memory.window_slabs + memory.host_blocks;
}

}  // namespace triphase
