#include "scheduler/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format_bytes.h"
#include "scheduler/kv/group_pages.h"
#include "scheduler/placement/host_requests.h"

namespace triphase {
namespace {

std::uint64_t saturating_sub(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

// A slab with what belongs to it on the device; those of window blocks have no K^T.
std::uint64_t window_slab_bytes(const MemoryRequest& request) {
  return (request.page_bytes + request.scale_bytes) *
         static_cast<std::uint64_t>(request.block_layers());
}
std::uint64_t slab_bytes(const MemoryRequest& request) {
  return window_slab_bytes(request) +
         request.transposed_k_bytes * static_cast<std::uint64_t>(request.block_layers());
}

// Slabs that are set aside for the window blocks of so many sequences of `tokens` tokens.
std::int64_t window_slabs(const MemoryRequest& request, std::int64_t sequences,
                          std::int64_t tokens) {
  const KvWindowShape& windows = request.windows;
  const std::int64_t of_each =
      window_room(windows, request.block_tokens, request.blocks_for(tokens));
  return windows.blocks * (sequences * of_each + window_store(windows, request.block_tokens));
}

// Bytes the smallest request needs beside weights and scratch: one block in every layer.
std::uint64_t smallest_kv(const MemoryRequest& request) {
  return slab_bytes(request) +
         window_slab_bytes(request) * static_cast<std::uint64_t>(window_slabs(request, 1, 1));
}

std::uint64_t partial_bytes(const MemoryRequest& request, std::int64_t batch) {
  if (!request.partial_pages) return 0;
  return request.partial_page_bytes * static_cast<std::uint64_t>(request.partial_pages(batch));
}

std::uint64_t streamed_weights(const MemoryRequest& request) {
  if (request.streamed_weights) return request.streamed_weights(request.streamed_layers);
  return static_cast<std::uint64_t>(request.streamed_layers) * request.layer_weights;
}

std::uint64_t device_weights(const MemoryRequest& request) {
  const std::uint64_t slots =
      request.streamed_layers > 0 ? kWeightSlots * request.layer_weights : 0;
  return saturating_sub(request.weights, streamed_weights(request)) + slots;
}

// What lies on the device for a batch before the first block has a home.
std::uint64_t fixed_bytes(const MemoryRequest& request, std::int64_t batch) {
  return device_weights(request) + request.scratch(batch) + partial_bytes(request, batch);
}

// Blocks that a device must hold beside resident weights, if a batch needs so many.
constexpr std::int64_t kFewBlocks = 4;

// As few layers as leave room for a little KV beside the batch asked for. Where even streaming all
// layers leaves no room: none, so that the refusal speaks of the whole model.
std::int64_t choose_streamed_layers(MemoryRequest request) {
  const std::int64_t batch = request.batch_size.value_or(1);
  const std::int64_t few = std::min(kFewBlocks, batch * request.blocks_for(request.context));
  const std::int64_t slabs = few + window_slabs(request, 1, few * request.block_tokens);
  const std::uint64_t kv = (request.page_bytes + request.transposed_k_bytes) *
                           static_cast<std::uint64_t>(request.block_layers() * slabs);
  for (; request.streamed_layers <= request.layers; ++request.streamed_layers) {
    if (fixed_bytes(request, batch) + kv <= request.budget) {
      return request.streamed_layers;
    }
  }
  return 0;
}

MemoryRequest settled(MemoryRequest request) {
  if (request.streamed_layers == 0) request.streamed_layers = choose_streamed_layers(request);
  return request;
}

std::uint64_t kv_room(const MemoryRequest& request, std::int64_t batch) {
  const std::uint64_t rest = saturating_sub(request.budget, fixed_bytes(request, batch));
  if (!request.kv_budget) return rest;
  return std::min(rest, saturating_sub(*request.kv_budget, partial_bytes(request, batch)));
}

// Blocks of the longest sequence that a plan has room for. Those on the host are read together,
// through staging.
std::int64_t most_blocks_of_one(const MemoryRequest& request, const MemoryPlan& plan) {
  const std::int64_t device = most_blocks_alone(request.windows, request.block_tokens,
                                                plan.kv_pages / request.block_layers());
  return plan.host_blocks == 0 ? device : std::min(device + plan.host_blocks, plan.staging_pages);
}

// Tokens of the longest request under the policy; nothing: there is no policy to ask.
std::optional<std::int64_t> most_tokens_of_one(const MemoryRequest& request,
                                               const MemoryPlan& plan) {
  if (request.policy == nullptr) return std::nullopt;
  return longest_request(*request.policy, request, plan);
}

// Tokens of requests that the plan holds, as the request asks; at least `held` where there is no
// policy to ask.
std::int64_t tokens_held(const MemoryRequest& request, const MemoryPlan& plan) {
  if (!request.held_together) return most_tokens_of_one(request, plan).value_or(request.held);
  return holds_together(placement_limits(request, plan), request.held) ? request.held : 0;
}

std::optional<MemoryPlan> divide(const MemoryRequest& request);
std::int64_t batch_of(const MemoryRequest& request);

[[noreturn]] void refuse(const MemoryRequest& asked) {
  const MemoryRequest request = settled(asked);
  const std::int64_t batch = batch_of(request);
  Error error(ErrorRole::kResources, "E-MEM-FIT", "device memory");
  const std::uint64_t partial = partial_bytes(request, batch);
  // With as many streamed layers as it takes, and as small a batch where none is given.
  MemoryRequest more = asked;
  more.kv_budget.reset();
  if (asked.kv_budget && try_plan_memory(more)) {
    more.kv_budget = partial + smallest_kv(request);
    std::optional<MemoryPlan> plan;
    while (!(plan = try_plan_memory(more))) *more.kv_budget += *more.kv_budget / 32 + 1;
    throw error
        .found(
            fmt::format("--device-kv-memory is {} and batch {} with blocks of {} tokens needs {}",
                        format_bytes(*request.kv_budget), plan->batch_size, request.block_tokens,
                        format_bytes(*more.kv_budget)))
        .expected("KV memory for at least one request")
        .hint(fmt::format("--device-kv-memory {}B", *more.kv_budget));
  }
  const std::uint64_t needed = fixed_bytes(request, batch) + smallest_kv(request);
  error
      .found(fmt::format(
          "weights {}, scratch{} for batch {} {} and one KV block {} make {}{}, and the budget is "
          "{}",
          format_bytes(device_weights(request)), partial > 0 ? " and partial KV blocks" : "", batch,
          format_bytes(request.scratch(batch) + partial), format_bytes(smallest_kv(request)),
          format_bytes(needed),
          needed <= request.budget ? " without what reads KV on the host" : "",
          format_bytes(request.budget)))
      .expected("a model and a request that fit");
  // The largest batch that would fit is the most useful thing to say.
  MemoryRequest smaller = asked;
  for (std::int64_t size = batch / 2; size >= 1; size /= 2) {
    smaller.batch_size = size;
    if (try_plan_memory(smaller)) throw error.hint(fmt::format("--batch-size {} fits", size));
  }
  smaller.batch_size = 1;
  smaller.kv_budget.reset();
  smaller.budget = fixed_bytes(request, 1) + smallest_kv(request);
  // The longest request's KV comes on top, on one side or the other, and what reads it on the host.
  // Where even a hundred times as much does not hold it: what holds any.
  std::uint64_t fits = smaller.budget;
  bool holds_any = false;
  for (int step = 0; step < 150; ++step) {
    const std::optional<MemoryPlan> plan = try_plan_memory(smaller);
    const bool holds =
        plan && most_blocks_of_one(request, *plan) >= request.blocks_for(request.context) &&
        most_tokens_of_one(request, *plan).value_or(request.context) >= request.context;
    if (holds || (plan && !holds_any)) fits = smaller.budget;
    if (holds) break;
    holds_any = holds_any || plan;
    smaller.budget += smaller.budget / 32;
  }
  throw error.hint(
      fmt::format("--device-memory {}B would fit batch 1, if the machine has it", fits));
}

// Staging for what arrives ahead: this share of the KV's room, at most a layer of the batch.
constexpr std::uint64_t kAheadShare = 16;
// What finds chosen tokens on the host takes at most this share of the KV's room.
constexpr std::uint64_t kLookupShare = 8;

// The cache holds at most what decoding chooses of a full host tier. The blocks without which the
// policy runs no request must stay possible.
void plan_token_cache(const MemoryRequest& request, std::uint64_t& room, MemoryPlan& plan) {
  const MemoryRequest::Host& host = *request.host;
  if (host.chosen_share <= 0.0 || plan.host_blocks == 0) return;
  const std::uint64_t one = request.page_bytes * static_cast<std::uint64_t>(request.block_layers());
  const std::uint64_t with_lookup = one + host.cached_block_lookup;
  const auto useful = static_cast<std::uint64_t>(
      std::ceil(std::min(host.chosen_share, 1.0) * static_cast<double>(plan.host_blocks)));
  const std::int64_t homes = std::max<std::int64_t>(host.step_homes + host.request_homes, 1);
  const std::uint64_t kept =
      smallest_kv(request) + static_cast<std::uint64_t>(homes - 1) * slab_bytes(request);
  const std::uint64_t most = room > kept ? room - kept : 0;
  const std::uint64_t asked = host.token_cache ? *host.token_cache / one : room / 4 / with_lookup;
  const std::uint64_t blocks = std::min({useful, asked, most / with_lookup});
  plan.cache_pages = static_cast<std::int64_t>(blocks) * request.block_layers();
  plan.cache = blocks * one;
  plan.lookup += blocks * host.cached_block_lookup;
  room -= blocks * with_lookup;
}

// Takes staging for the host tier from the room of the KV, and says how many blocks go to the host.
void plan_host_tier(const MemoryRequest& request, std::int64_t wanted_blocks,
                    std::int64_t blocks_per_sequence, std::uint64_t& room, MemoryPlan& plan) {
  const auto layers = static_cast<std::uint64_t>(request.block_layers());
  const std::uint64_t host_block = request.page_bytes * layers;
  const std::uint64_t host_room = saturating_sub(request.host->budget, plan.host_weights);
  // Scales stay on the device, and so does what finds a block's tokens. They must leave most of the
  // room for blocks.
  const std::uint64_t beside = request.scale_bytes * layers + request.host->block_lookup;
  std::uint64_t scaled = beside > 0 ? room / 2 / beside : UINT64_MAX;
  if (request.host->block_lookup > 0) {
    scaled = std::min(scaled, room / kLookupShare / request.host->block_lookup);
  }
  const std::uint64_t input_block = request.host->input_bytes * layers;
  std::uint64_t inputs = 0;
  if (request.host->input_blocks > 0) {
    inputs = static_cast<std::uint64_t>(request.host->input_blocks * plan.batch_size);
    inputs = std::min({inputs, host_room / 2 / input_block, scaled / 2});
  }
  plan.input_blocks = static_cast<std::int64_t>(inputs);
  plan.host_inputs = inputs * input_block;
  const std::uint64_t blocks =
      std::min({static_cast<std::uint64_t>(wanted_blocks),
                (host_room - plan.host_inputs) / host_block, scaled - inputs});
  plan.host_blocks = static_cast<std::int64_t>(blocks);
  plan.host_kv = host_block * blocks;
  const std::uint64_t scales = (blocks + inputs) * request.scale_bytes * layers;
  plan.lookup = (blocks + inputs) * request.host->block_lookup;
  room -= scales + plan.lookup;
  plan.kv += scales;
  if (blocks == 0) return;  // nothing will be read from there
  if (request.transposed_k_bytes > 0) {
    // K^T of a block on the host spares reading its keys over the link, in half the bytes of a
    // home. What staging leaves must hold the homes that no step can do without.
    const std::uint64_t one = request.transposed_k_bytes * layers;
    const std::int64_t there = request.host->whole_requests ? plan.batch_size : 1;
    const std::uint64_t homes =
        slab_bytes(request) *
        static_cast<std::uint64_t>(request.host->step_homes + request.host->request_homes * there);
    const std::uint64_t kept = request.host->holds_everything ? 4 * homes : 2 * homes;
    const std::uint64_t most = room > kept ? std::min(room / 2, room - kept) : 0;
    const std::uint64_t with_columns = std::min(blocks + inputs, most / one);
    plan.transposed_k_blocks = static_cast<std::int64_t>(with_columns);
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

// The batch asked for, or the largest whose scratch leaves room for a block.
std::int64_t batch_of(const MemoryRequest& request) {
  if (request.batch_size) return *request.batch_size;
  std::int64_t batch = request.most_batch;
  while (batch > 1 && kv_room(request, batch) < smallest_kv(request)) batch /= 2;
  return batch;
}

// Longest sequences whose KV both tiers hold. Window blocks take at most three quarters of the
// device's room, and leave staging for one sequence (a third of the rest).
std::int64_t sequences_with_host(const MemoryRequest& request, const MemoryPlan& plan,
                                 std::uint64_t room) {
  if (request.windows.blocks == 0) return plan.batch_size;
  const auto bytes = [&](std::int64_t slabs) {
    return window_slab_bytes(request) * static_cast<std::uint64_t>(slabs);
  };
  const std::int64_t blocks = request.blocks_for(request.context);
  const std::int64_t store = window_slabs(request, 0, request.context);
  const std::uint64_t windows = bytes(window_slabs(request, 1, request.context) - store);
  const std::uint64_t staged = request.page_bytes * static_cast<std::uint64_t>(blocks + 1);
  const std::uint64_t most = saturating_sub(room, std::max(room / 4, 3 * staged) + bytes(store));
  const std::uint64_t both = room + saturating_sub(request.host->budget, plan.host_weights);
  const std::uint64_t sequences = std::min(
      most / windows, both / (slab_bytes(request) * static_cast<std::uint64_t>(blocks) + windows));
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::min<std::uint64_t>(sequences, INT32_MAX)), 1, plan.batch_size);
}

// Nothing: it does not fit. `request` with its streamed layers settled.
std::optional<MemoryPlan> divide(const MemoryRequest& request) {
  // Slabs, not pages, are what sequences take: a remainder of pages would be of no use.
  const std::uint64_t block_bytes = slab_bytes(request);
  TRIPHASE_CHECK(block_bytes > 0, "a KV block has bytes in at least one layer");
  MemoryPlan plan{.streamed_layers = request.streamed_layers,
                  .weights = device_weights(request),
                  .host_weights = streamed_weights(request)};
  plan.batch_size = batch_of(request);
  std::uint64_t room = kv_room(request, plan.batch_size);
  const std::uint64_t smallest = smallest_kv(request);
  if (room < smallest) return std::nullopt;

  const std::int64_t blocks_per_sequence = request.blocks_for(request.context);
  const std::int64_t wanted = blocks_per_sequence * plan.batch_size;
  std::int64_t windows = window_slabs(request, plan.batch_size, request.context);
  const std::uint64_t window_bytes = window_slab_bytes(request);
  // Slabs in so many bytes, of which the first `windows` are for window blocks.
  const auto slabs_in = [&](std::uint64_t bytes) {
    const auto first = std::min(bytes / window_bytes, static_cast<std::uint64_t>(windows));
    const std::uint64_t slabs = first + (bytes - first * window_bytes) / block_bytes;
    return static_cast<std::int64_t>(
        std::min(slabs, static_cast<std::uint64_t>(INT32_MAX / request.block_layers())));
  };
  if (request.host && (request.host->always || slabs_in(room) < wanted + windows)) {
    const std::int64_t beside_host =
        window_slabs(request, sequences_with_host(request, plan, room), request.context);
    const std::uint64_t kept = window_bytes * static_cast<std::uint64_t>(beside_host);
    if (room < kept + block_bytes) return std::nullopt;
    MemoryPlan with_host = plan;
    std::uint64_t rest = room - kept;
    plan_host_tier(request, wanted, blocks_per_sequence, rest, with_host);
    // Without a page to read it through, KV on the host is of no use.
    if (with_host.host_blocks == 0 || with_host.staging_pages > 0) {
      plan = with_host;
      room = rest + kept;
      windows = beside_host;
    } else if (request.host->holds_everything) {
      return std::nullopt;
    }
    if (room < smallest) return std::nullopt;
  }
  const std::int64_t most_context = std::max(request.context, request.most_context);
  const std::int64_t most_blocks = request.blocks_for(most_context) * plan.batch_size +
                                   window_slabs(request, plan.batch_size, most_context);
  const std::int64_t blocks = std::min(slabs_in(room), most_blocks);
  plan.kv_pages = blocks * request.block_layers();
  plan.window_slabs = std::min(windows, blocks);
  plan.kv_tokens_per_sequence = std::min(
      most_blocks_alone(request.windows, request.block_tokens, blocks) * request.block_tokens,
      request.context);
  plan.scratch = request.scratch(plan.batch_size);
  plan.partial_pages = request.partial_pages ? request.partial_pages(plan.batch_size) : 0;
  if (request.transposed_k_bytes > 0) plan.transposed_k_blocks += blocks - plan.window_slabs;
  plan.transposed_k =
      (block_bytes - window_bytes) * static_cast<std::uint64_t>(plan.transposed_k_blocks);
  plan.kv +=
      window_bytes * static_cast<std::uint64_t>(blocks) + partial_bytes(request, plan.batch_size);
  if (most_tokens_of_one(request, plan) == 0) return std::nullopt;
  return plan;
}

}  // namespace

MemoryRequest memory_request(const SizedModel& model) {
  const auto block = static_cast<double>(model.block_tokens);
  const double codes = kv_record_bytes(*model.costs, model.kv_dtype);
  const double with_scales = kv_layer_bytes(*model.costs, model.kv_dtype, model.block_tokens);
  const std::int64_t rows =
      model.batch_size + std::min(model.prefill_chunk, model.batch_size * model.context);
  const std::uint64_t scratch = model.scratch.value_or(
      scratch_bytes(*model.costs, rows, model.batch_size, model.weights_dtype));
  const std::int64_t partial = partial_pages_needed(model.kv_dtype, model.costs->layers,
                                                    model.block_tokens, model.batch_size, rows);
  const auto page = static_cast<std::uint64_t>(codes * block);
  return {.budget = 0,
          .kv_budget = {},
          .weights = model.costs->weights(),
          .layer_weights = model.costs->layer_weights,
          .streamed_layers = model.streamed_layers,
          .scratch = [scratch](std::int64_t) { return scratch; },
          .page_bytes = page,
          .transposed_k_bytes = model.transposed_k ? page / 2 : 0,
          .layers = model.costs->layers,
          .block_tokens = model.block_tokens,
          .context = model.context,
          .batch_size = model.batch_size,
          .prefill_chunk = model.prefill_chunk,
          .scale_bytes = static_cast<std::uint64_t>(std::llround((with_scales - codes) * block)),
          .partial_page_bytes = static_cast<std::uint64_t>(
              kv_record_bytes(*model.costs, model.weights_dtype) * block),
          .partial_pages = [partial](std::int64_t) { return partial; },
          .host = {}};
}

MemoryRequest::Host host_tier(const PlacementPolicy& policy, const StaticPlacement& placement,
                              std::int64_t block_tokens, std::int64_t prefill_chunk) {
  return {.holds_everything = placement.host_streams_all,
          .always = placement.host_always,
          .input_blocks = policy.input_blocks(block_tokens),
          .whole_requests = placement.host_requests,
          .request_homes = kHostRequestDeviceBlocks,
          .step_homes = blocks_for(prefill_chunk, block_tokens)};
}

std::optional<MemoryPlan> try_plan_memory(const MemoryRequest& request) {
  MemoryRequest exact = settled(request);
  std::int64_t most = exact.streamed_layers;
  if (request.streamed_layers == 0 && (request.policy != nullptr || request.held_together)) {
    // More layers make room for requests, not for a larger batch.
    MemoryRequest any = request;
    any.policy = nullptr;
    any.held_together = false;
    if (!try_plan_memory(any)) return std::nullopt;
    most = exact.layers;
  }
  std::optional<MemoryPlan> best;
  std::int64_t best_tokens = 0;
  // Whether a request that must be held has room, at `exact`'s layers and batch.
  const auto holds = [&] {
    const std::optional<MemoryPlan> plan = divide(exact);
    if (!plan) return false;
    const std::int64_t tokens = tokens_held(exact, *plan);
    if (!best || tokens > best_tokens || tokens >= exact.held) {
      best = plan;
      best_tokens = tokens;
    }
    return tokens >= exact.held;
  };
  const std::int64_t least = exact.streamed_layers;
  const std::int64_t largest = batch_of(exact);
  const std::int64_t smallest = request.batch_size ? largest : 1;
  // A request that must be held is worth more layers before a smaller batch; any request is not.
  if (exact.held > 0) {
    for (std::int64_t batch = largest; batch >= smallest; batch /= 2) {
      exact.batch_size = batch;
      for (exact.streamed_layers = least; exact.streamed_layers <= most; ++exact.streamed_layers) {
        // As many as the host has room for; its refusal is about the fewest.
        if (best && streamed_weights(exact) > request.most_streamed) break;
        if (holds()) return best;
      }
    }
    return best;
  }
  for (; exact.streamed_layers <= most; ++exact.streamed_layers) {
    if (best && streamed_weights(exact) > request.most_streamed) break;
    exact.batch_size = request.batch_size;
    for (std::int64_t batch = batch_of(exact); batch >= smallest; batch /= 2) {
      exact.batch_size = batch;
      if (holds()) return best;
    }
  }
  return best;
}

MemoryPlan plan_memory(const MemoryRequest& request) {
  std::optional<MemoryPlan> plan = try_plan_memory(request);
  if (plan) return *plan;
  refuse(request);
}

bool should_keep_windows_apart(const MemoryRequest& request) {
  if (request.windows.blocks == 0) return false;
  const std::int64_t blocks = request.blocks_for(request.context);
  const std::int64_t slabs =
      blocks + request.windows.blocks * window_room(request.windows, request.block_tokens, blocks);
  if (10 * slabs * request.slab_pages > 9 * blocks * request.layers) return false;
  const std::optional<MemoryPlan> apart = try_plan_memory(request);
  if (!apart) return false;
  MemoryRequest together = request;
  together.slab_pages = 0;
  together.windows = {};
  const std::optional<MemoryPlan> plan = try_plan_memory(together);
  if (!plan) return true;
  if (apart->streamed_layers > plan->streamed_layers || apart->batch_size < plan->batch_size) {
    return false;
  }
  return most_blocks_of_one(request, *apart) >=
         std::min(most_blocks_of_one(together, *plan), blocks);
}

MemoryRequest keep_windows_apart(const MemoryRequest& request, const ModelCosts& model) {
  const std::int64_t sliding = model.sliding_layers();
  const std::int64_t whole = model.layers - sliding;
  if (sliding == 0 || whole == 0) return request;
  MemoryRequest apart = request;
  apart.slab_pages = whole;
  apart.windows = {.tokens = std::ranges::max(model.sliding, {}, &SlidingLayers::window).window,
                   .blocks = (sliding + whole - 1) / whole,
                   .step_tokens = request.prefill_chunk};
  return should_keep_windows_apart(apart) ? apart : request;
}

std::int64_t partial_pages_needed(DType kv_dtype, std::int64_t layers, std::int64_t block_tokens,
                                  std::int64_t sequences, std::int64_t rows) {
  if (kv_dtype != DType::kInt8) return 0;
  return layers * sequences + rows / block_tokens + 2 * sequences + 1;
}

double layers_staged_ahead(std::int64_t staging_pages, std::int64_t blocks, std::int64_t largest,
                           std::int64_t requests, std::int64_t layers) {
  if (blocks <= 0) return 0.0;
  const std::int64_t ahead = staging_pages - group_pages(staging_pages, largest);
  return std::clamp(static_cast<double>(ahead) / static_cast<double>(blocks + requests), 0.0,
                    static_cast<double>(layers - 1));
}

PlacementLimits placement_limits(const MemoryRequest& request, const MemoryPlan& plan) {
  return {.layers = request.layers,
          .block_tokens = request.block_tokens,
          .device_blocks = plan.kv_pages / request.block_layers(),
          .host_blocks = plan.host_blocks,
          .input_blocks = plan.input_blocks,
          .batch_size = plan.batch_size,
          .prefill_chunk = request.prefill_chunk,
          .windows = request.windows};
}

bool holds_together(const PlacementLimits& places, std::int64_t tokens) {
  return places.device_blocks >= places.batch_blocks(places.batch_size, tokens);
}

std::int64_t longest_request(const PlacementPolicy& policy, const MemoryRequest& request,
                             const MemoryPlan& plan) {
  const std::int64_t longest =
      std::min(request.context, policy.longest_request(placement_limits(request, plan)));
  if (plan.host_blocks == 0) return longest;
  // Dense attention reads a request's host blocks of one layer together.
  return std::min(longest, plan.staging_pages * request.block_tokens);
}

}  // namespace triphase
