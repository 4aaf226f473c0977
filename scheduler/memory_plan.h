#pragma once

// How memory is divided before anything is loaded: on the device weights, scratch, KV pages and the
// staging pages through which KV on the host is read, with a cache of tokens that are read again
// and again; on the host the KV blocks that the device cannot hold, and saved layer inputs. PURE.
// All sizes in bytes unless they say otherwise.

#include <cstdint>
#include <functional>
#include <optional>

namespace triphase {

struct MemoryRequest {
  std::uint64_t budget = 0;                // everything on the device
  std::optional<std::uint64_t> kv_budget;  // KV alone
  std::uint64_t weights = 0;
  // Activations and workspace for this many sequences decoding together.
  std::function<std::uint64_t(std::int64_t batch)> scratch;
  std::uint64_t page_bytes = 0;
  std::uint64_t key_column_bytes = 0;  // K^T of a block in one layer; 0: none is kept
  std::int64_t layers = 0;
  std::int64_t block_tokens = 0;
  std::int64_t context = 0;                // longest sequence the model allows, tokens
  std::optional<std::int64_t> batch_size;  // asked for; nothing: chosen here

  // INT8 KV: scales of one block in one layer, on the device wherever the block is, and the pages
  // of open blocks that a batch needs.
  std::uint64_t scale_bytes = 0;
  std::uint64_t open_page_bytes = 0;
  std::function<std::int64_t(std::int64_t batch)> open_pages;

  // KV may live on the host.
  struct Host {
    std::uint64_t budget = 0;
    // The policy keeps the whole KV there: the device needs staging more than homes.
    bool holds_everything = false;
    // Also where the device alone would do (a policy with a fixed share on the host).
    bool always = false;
    // Share of the host's tokens that decoding reads apart from the others; 0: it reads whole
    // blocks, and no token is cached.
    double chosen_share = 0.0;
    std::optional<std::uint64_t> token_cache;  // bytes; nothing: chosen here
    // Saved layer inputs: leading blocks of each sequence, and bytes of one, all layers.
    std::int64_t input_blocks = 0;
    std::uint64_t input_block_bytes = 0;
    // Blocks that need a home on the device for the policy to run a line, and to run a step at all.
    std::int64_t line_homes = 0;
    std::int64_t step_homes = 0;
  };
  std::optional<Host> host;
};

struct MemoryPlan {
  std::int64_t batch_size = 0;
  std::int64_t kv_pages = 0;
  std::int64_t kv_tokens_per_sequence = 0;  // longest sequence that fits alone
  std::uint64_t weights = 0;
  std::uint64_t scratch = 0;
  std::uint64_t kv = 0;                // pages, open pages and scales
  std::uint64_t key_columns = 0;       // K^T of the blocks that can have it on the device
  std::int64_t key_column_blocks = 0;  // of all layers
  std::int64_t staging_pages = 0;
  std::uint64_t staging = 0;
  std::int64_t cache_pages = 0;  // a multiple of the layers
  std::uint64_t cache = 0;
  std::int64_t open_pages = 0;
  std::int64_t host_blocks = 0;  // of all layers
  std::uint64_t host_kv = 0;
  std::int64_t input_blocks = 0;  // of saved layer inputs, all layers
  std::uint64_t host_inputs = 0;
  [[nodiscard]] std::uint64_t total() const {
    return weights + scratch + kv + key_columns + staging + cache;
  }
};

// Default batch: the CPU's throughput has flattened here, and scratch stays small.
inline constexpr std::int64_t kDefaultBatchSize = 32;

// Divides the budget. KV gets what a full batch of longest sequences could use, at most the rest of
// the budget; where that is less and there is a host tier, the host gets the same, and up to a
// third of the rest becomes staging for two longest sequences, up to a sixteenth of it staging for
// blocks that arrive early, and up to a quarter of what is then left the cache of chosen tokens.
// Throws ErrorRole::kResources E-MEM-FIT, saying what would fit, when weights, scratch and the
// smallest request (one block) do not fit.
[[nodiscard]] MemoryPlan plan_memory(const MemoryRequest& request);

}  // namespace triphase
