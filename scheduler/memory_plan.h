#pragma once

// How memory is divided before anything is loaded, for a run and for a simulated one: on the device
// weights, scratch, KV pages and the staging pages through which KV on the host is read, with a
// cache of tokens that are read again and again; on the host the weights that are streamed, the KV
// blocks that the device cannot hold, and cached hidden states. PURE. All sizes in bytes unless
// they say otherwise.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "scheduler/cost/model_costs.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

// Default batch of a CPU: its throughput has flattened here, and scratch stays small.
inline constexpr std::int64_t kDefaultBatchSize = 32;

struct MemoryRequest {
  std::uint64_t budget = 0;                // everything on the device
  std::optional<std::uint64_t> kv_budget;  // KV alone
  std::uint64_t weights = 0;               // of the whole model
  std::uint64_t layer_weights = 0;         // of its largest layer
  // Of the layers that are streamed where so many are; null: as many of the largest.
  std::function<std::uint64_t(std::int64_t layers)> streamed_weights{};
  std::int64_t streamed_layers = 0;  // that the policy streams; 0: as few as leave room for KV
  std::uint64_t most_streamed = UINT64_MAX;  // bytes of weights that the host has room for
  // Activations and workspace for this many sequences decoding together.
  std::function<std::uint64_t(std::int64_t batch)> scratch;
  std::uint64_t page_bytes = 0;
  std::uint64_t transposed_k_bytes = 0;  // K^T of a block in one layer; 0: none is kept
  std::int64_t layers = 0;
  // Where layers with windows are apart (scheduler/kv/kv_windows.h): pages of a slab, else 0.
  std::int64_t slab_pages = 0;
  KvWindowShape windows{};
  std::int64_t block_tokens = 0;
  std::int64_t context = 0;                     // tokens of the longest sequence
  std::int64_t most_context = 0;                // that the model allows; 0: `context`
  std::optional<std::int64_t> batch_size;       // asked for; nothing: chosen here
  std::int64_t most_batch = kDefaultBatchSize;  // that is chosen here
  // Says how long a request may be: a division without room for any does not fit. Null: not asked.
  const PlacementPolicy* policy = nullptr;
  std::int64_t prefill_chunk = 0;  // most prompt tokens of one step
  // Tokens of a request that must fit if streaming more layers makes the room; 0: none.
  std::int64_t held = 0;
  // Of every request of a whole batch, all on the device.
  bool held_together = false;

  // INT8 KV: scales of one block in one layer, on the device wherever the block is, and the pages
  // of partial blocks that a batch needs.
  std::uint64_t scale_bytes = 0;
  std::uint64_t partial_page_bytes = 0;
  std::function<std::int64_t(std::int64_t batch)> partial_pages;

  // KV may live on the host.
  struct Host {
    std::uint64_t budget = 0;  // everything on the host but its scratch
    // The policy keeps all KV on the host, so the device needs staging pages more than its own.
    bool holds_everything = false;
    // There is a host tier even where the device alone would do (a policy with a fixed share
    // there).
    bool always = false;
    // Share of the host's tokens that decoding reads apart from the others; 0: it reads whole
    // blocks, and no token is cached.
    double chosen_share = 0.0;
    std::optional<std::uint64_t> token_cache;  // bytes; nothing: chosen here
    // Device bytes of the tables in which chosen tokens are looked up: for a block on the host (or
    // of cached hidden states), and for a block of the token cache.
    std::uint64_t block_lookup = 0;
    std::uint64_t cached_block_lookup = 0;
    // Cached hidden states: leading blocks of each sequence, and bytes of one in one layer.
    std::int64_t input_blocks = 0;
    std::uint64_t input_bytes = 0;
    // Device blocks that the policy needs to run a request that is partly there, and to run any
    // step; with `whole_requests` every request of a batch is there.
    bool whole_requests = false;
    std::int64_t request_homes = 0;
    std::int64_t step_homes = 0;
  };
  std::optional<Host> host;

  // Layers that a block, on whatever tier, has pages of.
  [[nodiscard]] std::int64_t block_layers() const { return slab_pages > 0 ? slab_pages : layers; }
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return triphase::blocks_for(tokens, block_tokens);
  }
};

struct MemoryPlan {
  std::int64_t batch_size = 0;
  std::int64_t kv_pages = 0;      // of whole slabs
  std::int64_t window_slabs = 0;  // of these, those for window blocks of longest sequences
  std::int64_t kv_tokens_per_sequence = 0;  // longest sequence that fits alone
  std::int64_t streamed_layers = 0;         // on the host; they cross the link in every step
  std::uint64_t weights = 0;                // on the device, the slots of streamed layers included
  std::uint64_t host_weights = 0;
  std::uint64_t scratch = 0;
  std::uint64_t kv = 0;                  // pages, partial pages and scales
  std::uint64_t transposed_k = 0;        // K^T of the blocks that can have it on the device
  std::int64_t transposed_k_blocks = 0;  // of a block's layers
  std::int64_t staging_pages = 0;
  std::uint64_t staging = 0;
  std::int64_t cache_pages = 0;  // a multiple of MemoryRequest::block_layers()
  std::uint64_t cache = 0;
  std::uint64_t lookup = 0;  // tables in which the device looks chosen tokens up
  std::int64_t partial_pages = 0;
  std::int64_t host_blocks = 0;  // of a block's layers
  std::uint64_t host_kv = 0;
  std::int64_t input_blocks = 0;  // of cached hidden states, a block's layers
  std::uint64_t host_inputs = 0;
  [[nodiscard]] std::uint64_t total() const {
    return weights + scratch + kv + transposed_k + staging + cache + lookup;
  }
  // Tokens, each of a block's layers, that the token cache has room for.
  [[nodiscard]] std::int64_t cached_tokens(std::int64_t block_layers,
                                           std::int64_t block_tokens) const {
    return cache_pages / block_layers * block_tokens;
  }
};

// Of `chosen` tokens on the host, those that the link brings: the token cache has the others, which
// are `cached` at most.
[[nodiscard]] inline double missed_tokens(double chosen, double miss_rate, double cached) {
  return std::max(chosen * miss_rate, chosen - cached);
}

// Layers' weights that the device holds while it streams: one is used while the next one arrives.
inline constexpr std::int64_t kWeightSlots = 2;

// The request of a model that is known by its sizes: no host tier yet, and no budgets.
struct SizedModel {
  const ModelCosts* costs = nullptr;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;
  std::int64_t block_tokens = 0;
  std::int64_t streamed_layers = 0;
  std::int64_t batch_size = 0;
  std::int64_t prefill_chunk = 0;
  std::int64_t context = 0;              // longest sequence, tokens
  std::optional<std::uint64_t> scratch;  // nothing: estimated
  bool transposed_k = false;             // kept beside K on the device
};
[[nodiscard]] MemoryRequest memory_request(const SizedModel& model);

// The host tier as the policy wants it, without its budget, token cache and bytes of hidden states.
[[nodiscard]] MemoryRequest::Host host_tier(const PlacementPolicy& policy,
                                            const StaticPlacement& placement,
                                            std::int64_t block_tokens, std::int64_t prefill_chunk);

// Divides the budget. Weights that do not fit beside a little KV are streamed, and more layers
// until the policy has room for a request (of `held` tokens, where such room exists). KV gets what
// a full batch of sequences as long as the model allows could use, at most the rest of the budget:
// what the sequences leave keeps ended prompts for those that begin alike. Where that is too little
// for a full batch of longest sequences and there is a host tier, the host gets room for the same
// KV, and the rest of the device's budget is divided: up to a third is staging for two longest
// sequences, up to a sixteenth staging for prefetched blocks, and up to a quarter of what is then
// left the cache of chosen tokens. Throws ErrorRole::kResources E-MEM-FIT, saying what would fit,
// when weights, scratch and the smallest request (one block) do not fit.
[[nodiscard]] MemoryPlan plan_memory(const MemoryRequest& request);

// As plan_memory(), but returns nothing where it does not fit.
[[nodiscard]] std::optional<MemoryPlan> try_plan_memory(const MemoryRequest& request);

// Whether layers with windows should be apart as `request` has them: that saves a tenth of the KV
// of a longest sequence, and takes nothing away.
[[nodiscard]] bool should_keep_windows_apart(const MemoryRequest& request);
// `request`, of a model that is known by its sizes, with layers apart if they should be: divided as
// LayerSets does.
[[nodiscard]] MemoryRequest keep_windows_apart(const MemoryRequest& request,
                                               const ModelCosts& model);

// INT8: pages of partial blocks for steps of at most `rows` rows of at most `sequences` sequences.
// Each sequence needs one in every layer. Within a layer there is one for each block that is begun,
// and one for a block that is recomputed. 0 for every other type.
[[nodiscard]] std::int64_t partial_pages_needed(DType kv_dtype, std::int64_t layers,
                                                std::int64_t block_tokens, std::int64_t sequences,
                                                std::int64_t rows);

// How many layers' whole blocks fit into the staging pages ahead of a step. The step reads `blocks`
// blocks of a layer on the host, at most `largest` for one of its `requests`. A quarter of the
// pages, or a request's pages, are being read, and each request may need one more.
[[nodiscard]] double layers_staged_ahead(std::int64_t staging_pages, std::int64_t blocks,
                                         std::int64_t largest, std::int64_t requests,
                                         std::int64_t layers);

// The places on each tier that a policy can use.
[[nodiscard]] PlacementLimits placement_limits(const MemoryRequest& request,
                                               const MemoryPlan& plan);
// Whether the device alone holds a whole batch of requests of so many tokens.
[[nodiscard]] bool holds_together(const PlacementLimits& places, std::int64_t tokens);

// Tokens of the longest request that the job can hold, prompt and completion.
[[nodiscard]] std::int64_t longest_request(const PlacementPolicy& policy,
                                           const MemoryRequest& request, const MemoryPlan& plan);

}  // namespace triphase
