#pragma once

// The one interface of all placement policies: where each token's KV lives and how it gets to the
// device. Policies are immutable values behind a virtual call: what decide() does follows from
// the step alone, so that the engine and the simulator get the same actions from the same state.
// Which tokens are attended is not decided here (attention policies).

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "scheduler/placement/placement_step.h"

namespace triphase {

// How KV on the host takes part in a step.
enum class HostKvUse : std::uint8_t {
  kStream,        // layer by layer through staging (FlexGen's mode A, accelerate, triphase)
  kCpuAttention,  // attended where it lies; only q and the output cross the link (FlexGen's mode B)
};

// What a policy is told about a job before anything is loaded. Bytes.
struct JobView {
  std::int64_t layers = 0;
  std::int64_t block_tokens = 0;
  std::int64_t batch_size = 0;
  std::int64_t longest_tokens = 0;       // longest context of any request
  std::uint64_t device_budget = 0;       // everything on the device
  std::uint64_t host_budget = 0;         // everything on the host; 0: no host tier
  std::uint64_t layer_weights = 0;       // of one decoder layer
  std::uint64_t other_weights = 0;       // embeddings, head, final norm: always on the device
  std::uint64_t scratch = 0;             // activations and workspace on the device
  std::uint64_t kv_bytes_per_token = 0;  // K and V, all layers, at the job's KV precision
  bool int8_kv = false;                  // whose values the block's length shapes
};

// Fixed for a whole job.
struct StaticPlacement {
  std::int64_t streamed_layers = 0;  // layers whose weights live on the host and cross every step
  bool host_tier = false;  // KV may live on the host; false: PlacementLimits::host_blocks is 0
  HostKvUse host_kv = HostKvUse::kStream;
  // How the host tier is used. host_requests: requests have all their full blocks there.
  // host_always: even where the device alone could hold them. host_streams_all: all KV passes
  // through staging, so the device needs staging more than homes.
  bool host_requests = false;
  bool host_always = false;
  bool host_streams_all = false;
  // Layers with windows keep KV on the device as far back as these reach, apart from the others
  // (scheduler/kv/kv_windows.h), where that saves memory. The systems that the other policies come
  // from keep all of it.
  bool windows_apart = false;
  std::int64_t gpu_batch = 0;     // zig-zag: sequences computed together; 0: all
  std::int64_t num_batches = 1;   // batches in one block: a layer's weights are loaded once
  std::optional<DType> kv_dtype;  // nothing: the job's choice
  std::optional<std::int64_t> block_tokens;  // nothing: the job's choice
  bool overlap = true;                       // false: copies and compute wait for each other
};

class PlacementPolicy {
 public:
  PlacementPolicy() = default;
  PlacementPolicy(const PlacementPolicy&) = delete;
  PlacementPolicy& operator=(const PlacementPolicy&) = delete;
  virtual ~PlacementPolicy() = default;

  // Its name in --policy.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Choices for the whole job. Throws ErrorRole::kResources E-MEM-FIT, saying what would fit, when
  // the policy cannot run the job at all.
  [[nodiscard]] virtual StaticPlacement start(const JobView& job) const = 0;

  // Longest context of a request that this policy can hold when it runs alone. Longer requests
  // become error records and must not be shown to decide().
  [[nodiscard]] virtual std::int64_t longest_request(const PlacementLimits& limits) const = 0;

  // Leading blocks of a sequence whose hidden states X the policy wants saved on the host.
  [[nodiscard]] virtual std::int64_t input_blocks(std::int64_t /*block_tokens*/) const { return 0; }

  // Does what is to be done before the step. Never over-commits where every request is at most
  // longest_request(), and keeps at least one running when any is there (PlacementStep::check).
  virtual void decide(PlacementStep& step) const = 0;
};

}  // namespace triphase
