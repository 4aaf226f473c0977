#include "scheduler/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format_bytes.h"

namespace triphase {
namespace {

std::uint64_t saturating_sub(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

// Bytes the smallest request needs beside weights and scratch: one block in every layer.
std::uint64_t smallest_kv(const MemoryRequest& request) {
  return (request.page_bytes + request.key_column_bytes + request.scale_bytes) *
         static_cast<std::uint64_t>(request.layers);
}

std::uint64_t open_bytes(const MemoryRequest& request, std::int64_t batch) {
  if (!request.open_pages) return 0;
  return request.open_page_bytes * static_cast<std::uint64_t>(request.open_pages(batch));
}

// What lies on the device for a batch before the first block has a home.
std::uint64_t fixed_bytes(const MemoryRequest& request, std::int64_t batch) {
  return request.weights + request.scratch(batch) + open_bytes(request, batch);
}

std::uint64_t kv_room(const MemoryRequest& request, std::int64_t batch) {
  const std::uint64_t rest = saturating_sub(request.budget, fixed_bytes(request, batch));
  if (!request.kv_budget) return rest;
  return std::min(rest, saturating_sub(*request.kv_budget, open_bytes(request, batch)));
}

[[noreturn]] void refuse(const MemoryRequest& request, std::int64_t batch) {
  Error error(ErrorRole::kResources, "E-MEM-FIT", "device memory");
  if (request.kv_budget && *request.kv_budget < smallest_kv(request)) {
    throw error
        .found(fmt::format("--device-kv-memory is {} and one block of {} tokens takes {}",
                           format_bytes(*request.kv_budget), request.block_tokens,
                           format_bytes(smallest_kv(request))))
        .expected("KV memory for at least one block")
        .hint(fmt::format("--device-kv-memory {}B", smallest_kv(request)));
  }
  const std::uint64_t needed = fixed_bytes(request, batch) + smallest_kv(request);
  error
      .found(fmt::format("weights {}, scratch for batch {} {} and one KV block {} make {}, and the "
                         "budget is {}",
                         format_bytes(request.weights), batch, format_bytes(request.scratch(batch)),
                         format_bytes(smallest_kv(request)), format_bytes(needed),
                         format_bytes(request.budget)))
      .expected("a model and a request that fit");
  // The largest batch that would fit is the most useful thing to say.
  for (std::int64_t smaller = batch / 2; smaller >= 1; smaller /= 2) {
    if (kv_room(request, smaller) >= smallest_kv(request)) {
      throw error.hint(fmt::format("--batch-size {} fits", smaller));
    }
  }
  throw error.hint(fmt::format("--device-memory {}B would fit batch 1, if the machine has it",
                               fixed_bytes(request, 1) + smallest_kv(request)));
}

// Staging for what arrives ahead: this share of the KV's room, at most a layer of the batch.
constexpr std::uint64_t kAheadShare = 16;

// The cache holds at most what decoding chooses of a full host tier. A block must stay possible.
void plan_token_cache(const MemoryRequest& request, std::uint64_t& room, MemoryPlan& plan) {
  const MemoryRequest::Host& host = *request.host;
  if (host.chosen_share <= 0.0 || plan.host_blocks == 0) return;
  const std::uint64_t one = request.page_bytes * static_cast<std::uint64_t>(request.layers);
  const auto useful = static_cast<std::uint64_t>(
      std::ceil(std::min(host.chosen_share, 1.0) * static_cast<double>(plan.host_blocks)));
  const std::uint64_t most = room > smallest_kv(request) ? room - smallest_kv(request) : 0;
  const std::uint64_t bytes = std::min(host.token_cache.value_or(room / 4), most);
  const std::uint64_t blocks = std::min(useful, bytes / one);
  plan.cache_pages = static_cast<std::int64_t>(blocks) * request.layers;
  plan.cache = blocks * one;
  room -= plan.cache;
}

// Takes staging for the host tier from the room of the KV, and says how many blocks go to the host.
void plan_host_tier(const MemoryRequest& request, std::int64_t wanted_blocks,
                    std::int64_t blocks_per_sequence, std::uint64_t& room, MemoryPlan& plan) {
  const auto layers = static_cast<std::uint64_t>(request.layers);
  const std::uint64_t host_block = request.page_bytes * layers;
  // Scales stay on the device; they must leave most of it for blocks.
  const std::uint64_t scaled =
      request.scale_bytes > 0 ? room / 2 / (request.scale_bytes * layers) : UINT64_MAX;
  std::uint64_t inputs = 0;
  if (request.host->input_blocks > 0) {
    inputs = static_cast<std::uint64_t>(request.host->input_blocks * plan.batch_size);
    inputs =
        std::min({inputs, request.host->budget / 2 / request.host->input_block_bytes, scaled / 2});
  }
  plan.input_blocks = static_cast<std::int64_t>(inputs);
  plan.host_inputs = inputs * request.host->input_block_bytes;
  const std::uint64_t blocks =
      std::min({static_cast<std::uint64_t>(wanted_blocks),
                (request.host->budget - plan.host_inputs) / host_block, scaled - inputs});
  plan.host_blocks = static_cast<std::int64_t>(blocks);
  plan.host_kv = host_block * blocks;
  const std::uint64_t scales = (blocks + inputs) * request.scale_bytes * layers;
  room -= scales;
  plan.kv += scales;
  if (request.key_column_bytes > 0) {
    // K^T of a block on the host spares its way at a half of what a home would take. What staging
    // leaves must hold the homes that no step can do without.
    const std::uint64_t one = request.key_column_bytes * layers;
    const std::uint64_t homes =
        smallest_kv(request) *
        static_cast<std::uint64_t>(request.host->step_homes +
                                   request.host->line_homes * plan.batch_size);
    const std::uint64_t kept = request.host->holds_everything ? 4 * homes : 2 * homes;
    const std::uint64_t most = room > kept ? std::min(room / 2, room - kept) : 0;
    const std::uint64_t with_columns = std::min(blocks + inputs, most / one);
    plan.key_column_blocks = static_cast<std::int64_t>(with_columns);
    room -= with_columns * one;
  }
  const std::int64_t sequences = request.host->holds_everything ? plan.batch_size : 1;
  const auto most = static_cast<std::uint64_t>(2 * sequences * blocks_per_sequence);
  const std::uint64_t share = request.host->holds_everything ? room / 4 * 3 : room / 3;
  plan.staging_pages = static_cast<std::int64_t>(std::min(most, share / request.page_bytes));
  if (!request.host->holds_everything) {
    // The link goes on while a layer computes what is not attention.
    const auto layer = static_cast<std::uint64_t>(wanted_blocks);
    plan.staging_pages +=
        static_cast<std::int64_t>(std::min(layer, room / kAheadShare / request.page_bytes));
  }
  plan.staging = static_cast<std::uint64_t>(plan.staging_pages) * request.page_bytes;
  room -= plan.staging;
  plan_token_cache(request, room, plan);
}

}  // namespace

MemoryPlan plan_memory(const MemoryRequest& request) {
  // Blocks, not pages, are what sequences take: a remainder of pages would be of no use.
  const std::uint64_t block_bytes = smallest_kv(request);
  TRIPHASE_CHECK(block_bytes > 0, "a KV block has bytes in at least one layer");
  MemoryPlan plan;
  plan.batch_size = request.batch_size.value_or(kDefaultBatchSize);
  if (!request.batch_size) {
    while (plan.batch_size > 1 && kv_room(request, plan.batch_size) < block_bytes) {
      plan.batch_size /= 2;
    }
  }
  std::uint64_t room = kv_room(request, plan.batch_size);
  if (room < block_bytes) refuse(request, plan.batch_size);

  const std::int64_t blocks_per_sequence =
      (request.context + request.block_tokens - 1) / request.block_tokens;
  const std::int64_t wanted = blocks_per_sequence * plan.batch_size;
  const auto blocks_in = [&](std::uint64_t bytes) {
    return static_cast<std::int64_t>(
        std::min(bytes / block_bytes, static_cast<std::uint64_t>(INT32_MAX / request.layers)));
  };
  if (request.host && (request.host->always || blocks_in(room) < wanted)) {
    plan_host_tier(request, wanted, blocks_per_sequence, room, plan);
    if (room < block_bytes) refuse(request, plan.batch_size);
  }
  const std::int64_t blocks = std::min(blocks_in(room), wanted);
  plan.kv_pages = blocks * request.layers;
  plan.kv_tokens_per_sequence = std::min(blocks * request.block_tokens, request.context);
  plan.weights = request.weights;
  plan.scratch = request.scratch(plan.batch_size);
  plan.open_pages = request.open_pages ? request.open_pages(plan.batch_size) : 0;
  const std::uint64_t block_columns =
      request.key_column_bytes * static_cast<std::uint64_t>(request.layers);
  if (block_columns > 0) plan.key_column_blocks += blocks;
  plan.key_columns = block_columns * static_cast<std::uint64_t>(plan.key_column_blocks);
  plan.kv += (block_bytes - block_columns) * static_cast<std::uint64_t>(blocks) +
             open_bytes(request, plan.batch_size);
  return plan;
}

}  // namespace triphase
