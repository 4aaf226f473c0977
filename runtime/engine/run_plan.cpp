#include "runtime/engine/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/format_bytes.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/sample_workspace.h"
#include "models/attention/attention_method.h"
#include "models/decoder_model.h"
#include "runtime/engine/gpu_limits.h"
#include "runtime/engine/make_policy.h"
#include "runtime/machine.h"
#include "runtime/refuse.h"
#include "scheduler/batch_planner.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/placement/device_only_policy.h"

namespace triphase {
namespace {

// By its published peaks an H200's FP16 products are bound by arithmetic from 206 rows on.
constexpr std::int64_t kMostDefaultBatch = 256;

std::unique_ptr<AttentionMethod> method_of(const RunOptions& options, const ModelBundle& model) {
  return make_attention_method(options.attention, method_shape(model.config), model.clusters());
}

// What is chosen for a sequence at once.
struct Lists {
  std::int64_t count = 0;
  std::int64_t longest = 0;  // tokens
};
Lists lists_of(const AttentionMethod& method, std::int64_t context) {
  const std::int64_t layers = method.layers_ahead();
  // Those of all layers are as long as their budget; it grows with the context.
  return {layers * method.lists(), layers > 1 ? method.list_tokens(context, context) : context};
}

class Planner {
 public:
  Planner(const RunOptions& options, const ModelBundle& model, const ComputeMachine& machine,
          std::int64_t prefill_chunk)
      : options_(options),
        model_(model),
        machine_(machine),
        most_context_(most_context(options, model.config)),
        context_(options.machine.job_context > 0
                     ? std::min(options.machine.job_context, most_context_)
                     : most_context_),
        by_layer_(layer_bytes(model.config, model.weights_dtype)),
        layer_bytes_(std::ranges::max(by_layer_)) {
    plan_.prefill_chunk = prefill_chunk;
  }

  RunPlan plan() {
    plan_.policy = make_policy(options_);
    // A unit is computed in one step, and none is longer than what a prompt has behind the context.
    const auto shared = std::ssize(model_.context_tokens());
    plan_.prompt_units = prompt_units(options_.attention, shared);
    plan_.prefill_chunk =
        std::max(plan_.prefill_chunk, std::min(plan_.prompt_units.rows, context_ - shared));
    plan_.context = context_;
    choose_budgets();
    choose_kv();
    batch_ = options_.machine.batch_size > 0 ? options_.machine.batch_size : most_batch();
    plan_.placement = plan_.policy->start(job_view(batch_));
    if (plan_.placement.block_tokens && !options_.given("kv-block")) {
      plan_.kv.block_tokens = *plan_.placement.block_tokens;
      // vLLM's 16 tokens are half of a GPU kernel's smallest page.
      if (machine_.gpu) plan_.kv.block_tokens = std::max<std::int64_t>(plan_.kv.block_tokens, 32);
    }
    plan_.kv.host_attention = plan_.placement.host_kv == HostKvUse::kCpuAttention;
    choose_inputs();
    divide();
    check_host_memory();
    return std::move(plan_);
  }

 private:
  // No more than there are requests. A larger batch's buffers must leave most of the room to KV.
  [[nodiscard]] std::int64_t most_batch() const {
    std::int64_t batch = default_batch_size(machine_);
    if (const std::int64_t requests = options_.machine.requests; requests > 0) {
      batch = std::min(batch, requests);
    }
    const std::uint64_t weights = model_.weight_bytes < plan_.budget ? model_.weight_bytes : 0;
    const std::uint64_t room = plan_.budget - weights;
    while (batch > kDefaultBatchSize && 4 * scratch(batch) > room) batch /= 2;
    return batch;
  }

  [[nodiscard]] BatchLimits limits_for(std::int64_t batch) const {
    const std::int64_t rows = batch + plan_.prefill_chunk;
    return {.rows = rows,
            .segments = batch,
            .logit_rows = options_.scores_prompts() ? rows : batch,
            .context = context_,
            .sparse = options_.attention.sparse(),
            .input_block_tokens = plan_.input_tokens > 0 ? plan_.kv.block_tokens : 0,
            .listed_input_tokens = lists_recomputes() ? plan_.input_tokens : 0};
  }

  [[nodiscard]] std::uint64_t scratch(std::int64_t batch) const {
    const BatchLimits limits = limits_for(batch);
    return DecoderModel::scratch_bytes(model_.config, limits, machine_.threads) +
           ops_reserved_bytes(machine_, ops_shape(model_, options_, limits, plan_.kv)) +
           sample_workspace_bytes(machine_, model_.config.vocab_size) +
           cluster_memory(options_, model_) + selection(batch);
  }

  [[nodiscard]] std::unique_ptr<AttentionMethod> method() const {
    return method_of(options_, model_);
  }

  // What the attention method keeps of every sequence, preempted ones included, and what the device
  // looks chosen tokens up with.
  [[nodiscard]] std::uint64_t selection(std::int64_t batch) const {
    if (!options_.attention.sparse()) return 0;
    const std::optional<ResolverShape> lookup = resolver_shape(batch);
    return method()->state_bytes(batch + waiting(batch), context_) +
           (lookup ? resolver_costs(*lookup).fixed : 0);
  }

  // Whether chosen tokens alone come from KV on the host, not whole blocks.
  [[nodiscard]] bool looks_up() const {
    return options_.attention.sparse() && plan_.placement.host_tier && method()->fetches_tokens();
  }
  // Whether tokens of blocks that nobody stores are listed by the resolver; else such blocks are
  // recomputed as a whole (TokenLookup::lists_recomputes).
  [[nodiscard]] bool lists_recomputes() const {
    return plan_.kv.input_width > 0 && looks_up() && method()->lists() == 1;
  }

  [[nodiscard]] std::optional<ResolverShape> resolver_shape(std::int64_t batch) const {
    if (!looks_up()) return std::nullopt;
    const std::unique_ptr<AttentionMethod> chooser = method();
    const BatchLimits limits = limits_for(batch);
    // A list may be a few tokens shorter where the context is longer: a page has begun.
    constexpr std::int64_t kUneven = 256;
    std::int64_t longest = 1;
    for (std::int64_t context = std::max<std::int64_t>(1, context_ - kUneven); context <= context_;
         ++context) {
      longest = std::max(longest, std::min(context, chooser->list_tokens(context, context)));
    }
    return ResolverShape{.layers = plan_.kv.slab_pages(),
                         .lists = chooser->lists(),
                         .block_tokens = plan_.kv.block_tokens,
                         .rows = limits.segments,
                         .batch_rows = limits.rows,
                         .row_blocks = blocks_for(context_, plan_.kv.block_tokens),
                         .list_tokens = list_capacity(longest),
                         .early = chooser->chooses_early(),
                         .quantized = plan_.kv.quantized(),
                         .recomputes = lists_recomputes()};
  }

  // Sequences that vLLM's policy swaps out keep what is not in pages: as many again may wait.
  [[nodiscard]] std::int64_t waiting(std::int64_t batch) const {
    return plan_.policy->name() == "vllm" ? batch : 0;
  }

  void choose_budgets() {
    const std::uint64_t free = usable_host_memory();
    const std::optional<std::uint64_t>& host = options_.machine.host_memory;
    plan_.budget = options_.machine.device_memory.value_or(
        machine_.gpu ? machine_.gpu->memory
                     : default_device_budget(std::min(free, host.value_or(UINT64_MAX))));
    plan_.host_budget = host.value_or(default_host_budget(free, machine_.gpu ? 0 : plan_.budget));
  }

  void choose_kv() {
    const DType compute = kv_dtype_on(machine_, std::nullopt, model_.weights_dtype);
    const DType dtype = kv_dtype_on(machine_, options_.machine.kv_dtype, model_.weights_dtype);
    plan_.kv = {.layers = model_.config.layers,
                .kv_heads = model_.config.kv_heads,
                .head_dim = model_.config.head_dim,
                .block_tokens = default_block_tokens(dtype),
                .dtype = dtype,
                .partial_dtype = compute,
                .transposed_k = keeps_transposed_k(options_.attention)};
    if (options_.machine.kv_block > 0) plan_.kv.block_tokens = options_.machine.kv_block;
    if (plan_.kv.quantized() && plan_.kv.block_tokens % KvShape::kInt8BlockMultiple != 0) {
      refuse_option(
          "--kv-block", fmt::to_string(options_.machine.kv_block),
          fmt::format("a multiple of {} with --kv-dtype int8", KvShape::kInt8BlockMultiple));
    }
    if (machine_.gpu && !gpu_takes_pages(plan_.kv.block_tokens)) {
      refuse_option("--kv-block", fmt::format("{} on a GPU", plan_.kv.block_tokens),
                    "32, 64 or 128");
    }
  }

  // Buffers of attention on the host.
  [[nodiscard]] std::uint64_t host_scratch(std::int64_t batch) const {
    if (!plan_.kv.host_attention) return 0;
    return HostAttention::host_bytes(model_.config, batch, context_, machine_.threads);
  }

  // K and V of leading tokens come from their hidden states under every policy, even where none
  // are saved: a record must not depend on placement.
  void choose_inputs() {
    const std::int64_t block = plan_.kv.block_tokens;
    const std::int64_t blocks = plan_.policy->input_blocks(block);
    plan_.input_tokens = std::max(options_.machine.cached_hidden_states, blocks * block);
    if (blocks == 0) return;
    if (!plan_.kv.page_holds_inputs(model_.config.hidden_size)) {
      refuse_conflict(
          "recomputation",
          fmt::format("{} bytes of K of a token in one layer",
                      plan_.kv.page_bytes() / 2 / static_cast<std::uint64_t>(block)),
          fmt::format("at least {}, its cached INT8 hidden states: with fewer, transferring is "
                      "always cheaper",
                      model_.config.hidden_size),
          "triphase plan --recompute off makes a plan without it; so does a beta of 0");
    }
    plan_.kv.input_width = model_.config.hidden_size;
  }

  // The share of a longest request's tokens that the method reads, where it fetches single tokens.
  // The baselines cache no tokens, as the original systems do not.
  [[nodiscard]] double chosen_share() const {
    const bool caches =
        plan_.policy->name() == "triphase" || options_.machine.token_cache.has_value();
    if (!caches || !options_.attention.sparse()) return 0.0;
    if (!method()->fetches_tokens()) return 0.0;
    return static_cast<double>(budget_tokens(options_.attention, context_, context_)) /
           static_cast<double>(context_);
  }

  [[nodiscard]] JobView job_view(std::int64_t batch) const {
    const ModelConfig& config = model_.config;
    const std::uint64_t layers = layer_bytes_ * static_cast<std::uint64_t>(config.layers);
    return {.layers = config.layers,
            .block_tokens = plan_.kv.block_tokens,
            .batch_size = batch,
            .longest_tokens = context_,
            .device_budget = plan_.budget,
            .host_budget = plan_.host_budget,
            .layer_weights = layer_bytes_,
            .other_weights = model_.weight_bytes - std::min(layers, model_.weight_bytes),
            .scratch = scratch(batch),
            .kv_bytes_per_token = (plan_.kv.page_bytes() + plan_.kv.transposed_k_bytes()) *
                                  static_cast<std::uint64_t>(config.layers) /
                                  static_cast<std::uint64_t>(plan_.kv.block_tokens),
            .int8_kv = plan_.kv.quantized()};
  }

  [[nodiscard]] std::uint64_t streamed_bytes(std::int64_t count) const {
    const auto layers = std::ssize(by_layer_);
    std::uint64_t bytes = 0;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (WeightHomes::spread(layer, layers, count)) bytes += by_layer_[layer];
    }
    return bytes;
  }

  // Layers with windows are apart where the policy allows it and memory is saved.
  void choose_layer_sets() {
    if (!plan_.placement.windows_apart || !options_.machine.windows_apart) return;
    plan_.kv.sets = LayerSets(model_.config.sliding_window);
    if (plan_.kv.sets.apart() && !should_keep_windows_apart(memory_request())) plan_.kv.sets = {};
  }

  // Divisions differ in streamed layers more often than in their batch.
  [[nodiscard]] std::uint64_t scratch_once(std::int64_t batch) const {
    const auto [found, fresh] = scratch_.try_emplace(batch);
    if (fresh) found->second = scratch(batch);
    return found->second;
  }

  [[nodiscard]] MemoryRequest memory_request() const {
    scratch_.clear();  // of another shape of the KV
    const LayerSets& sets = plan_.kv.sets;
    MemoryRequest request{.budget = plan_.budget,
                          .kv_budget = options_.machine.device_kv_memory,
                          .weights = model_.weight_bytes,
                          .layer_weights = layer_bytes_,
                          .streamed_layers = plan_.placement.streamed_layers,
                          .scratch = [this](std::int64_t batch) { return scratch_once(batch); },
                          .page_bytes = plan_.kv.page_bytes(),
                          .transposed_k_bytes = plan_.kv.transposed_k_bytes(),
                          .layers = plan_.kv.layers,
                          .slab_pages = sets.apart() ? plan_.kv.slab_pages() : 0,
                          .windows = {.tokens = sets.window(),
                                      .blocks = sets.window_blocks(),
                                      .step_tokens = sets.apart() ? plan_.prefill_chunk : 0},
                          .block_tokens = plan_.kv.block_tokens,
                          .context = context_,
                          .most_context = most_context_,
                          .batch_size = options_.machine.batch_size > 0
                                            ? std::optional(options_.machine.batch_size)
                                            : std::nullopt,
                          .most_batch = batch_,
                          .policy = plan_.policy.get(),
                          .prefill_chunk = plan_.prefill_chunk,
                          .held = std::min(options_.machine.held_tokens, context_),
                          .held_together = options_.machine.held_together,
                          .scale_bytes = plan_.kv.scale_bytes(),
                          .partial_page_bytes = plan_.kv.partial_page_bytes()};
    request.streamed_weights = [this](std::int64_t count) { return streamed_bytes(count); };
    request.most_streamed = plan_.host_budget - std::min(plan_.host_budget, host_scratch(batch_));
    request.partial_pages = [this](std::int64_t batch) {
      return partial_pages_needed(plan_.kv.dtype, plan_.kv.layers, plan_.kv.block_tokens,
                                  batch + waiting(batch), limits_for(batch).rows);
    };
    // On the CPU both tiers would be the same memory without a budget for the device.
    const bool budgeted =
        machine_.gpu || options_.machine.device_memory || options_.machine.device_kv_memory;
    if (plan_.placement.host_tier && (budgeted || plan_.policy->name() != "triphase")) {
      MemoryRequest::Host& host = request.host.emplace(
          host_tier(*plan_.policy, plan_.placement, plan_.kv.block_tokens, plan_.prefill_chunk));
      host.budget = request.most_streamed;  // one room for weights and KV
      host.chosen_share = chosen_share();
      host.token_cache = options_.machine.token_cache;
      if (const std::optional<ResolverShape> lookup = resolver_shape(1)) {
        const ResolverCosts costs = resolver_costs(*lookup);
        host.block_lookup = costs.host_block;
        host.cached_block_lookup =
            costs.hot_row * static_cast<std::uint64_t>(plan_.kv.block_tokens);
      }
      host.input_bytes = plan_.kv.input_bytes();
    }
    return request;
  }

  void divide() {
    choose_layer_sets();
    const MemoryRequest request = memory_request();
    plan_.memory = plan_memory(request);
    plan_.placement.streamed_layers = plan_.memory.streamed_layers;
    plan_.limits = limits_for(plan_.memory.batch_size);
    plan_.ops = ops_shape(model_, options_, plan_.limits, plan_.kv);
    plan_.ops_memory = ops_reserved_bytes(machine_, plan_.ops);
    plan_.selection = selection(plan_.memory.batch_size);
    choose_resolver();
    plan_.kv.host_attention = plan_.kv.host_attention && plan_.memory.host_blocks > 0;
    plan_.host_scratch = host_scratch(plan_.memory.batch_size);
    // Nothing can leave the device: Phase I to the end. Reserving at admission decides the same,
    // once instead of in every step.
    const bool on_demand = options_.plan.schedule && options_.plan.schedule->on_demand &&
                           may_give_on_demand(options_, machine_);
    if (plan_.policy->name() == "triphase" && plan_.memory.host_blocks == 0 && !on_demand) {
      plan_.policy = std::make_shared<DeviceOnlyPolicy>();
    }
    plan_.places = placement_limits(request, plan_.memory);
    plan_.longest_request = longest_request(*plan_.policy, request, plan_.memory);
  }

  // Whether the machine, and the budget for its host memory, have room for the plan.
  void check_host_memory() const {
    const MemoryPlan& memory = plan_.memory;
    const std::optional<std::uint64_t> budget = options_.machine.host_memory;
    const std::uint64_t on_host =
        memory.host_weights + memory.host_kv + memory.host_inputs + plan_.host_scratch;
    // KV takes what the budget leaves; streamed weights and scratch have no other place.
    if (budget && on_host > *budget) {
      throw Error(ErrorRole::kResources, "E-MEM-FIT", "--host-memory")
          .found(fmt::format("{}, and streamed weights take {} there, scratch {}",
                             format_bytes(*budget), format_bytes(memory.host_weights),
                             format_bytes(plan_.host_scratch)))
          .expected(fmt::format("at least {}", format_bytes(on_host)))
          .hint("raise it, or --device-memory");
    }
    // Given budgets may exceed the machine's memory. The system takes pages when they are touched,
    // so it would end the job in the middle.
    const std::uint64_t needed = on_host + (machine_.gpu ? 0 : memory.total());
    const std::uint64_t free = usable_host_memory();
    if (needed <= free) return;
    const bool host = machine_.gpu || on_host > memory.total();
    throw Error(ErrorRole::kResources, "E-MEM-FIT", host ? "--host-memory" : "--device-memory")
        .found(fmt::format("a plan of {}", format_bytes(needed)))
        .expected(
            fmt::format("at most {}, which this machine or container has left", format_bytes(free)))
        .hint("lower it, --batch-size or --max-context");
  }

  void choose_resolver() {
    const MemoryPlan& memory = plan_.memory;
    plan_.resolver = resolver_shape(memory.batch_size);
    if (memory.host_blocks == 0) plan_.resolver.reset();
    if (!plan_.resolver) return;
    const std::int64_t block = plan_.kv.block_tokens;
    plan_.resolver->host_blocks = memory.host_blocks;
    plan_.resolver->input_blocks = plan_.resolver->recomputes ? memory.input_blocks : 0;
    plan_.resolver->hot_rows = memory.cache_pages / plan_.kv.slab_pages() * block;
    plan_.resolver->first_hot_slot = (memory.kv_pages + memory.staging_pages) * block;
  }

  const RunOptions& options_;
  const ModelBundle& model_;
  ComputeMachine machine_;
  std::int64_t most_context_;
  std::int64_t context_;
  std::vector<std::uint64_t> by_layer_;
  std::uint64_t layer_bytes_;                              // of the largest layer
  mutable std::map<std::int64_t, std::uint64_t> scratch_;  // bytes for a batch
  std::int64_t batch_ = 0;                                 // asked for, or the most that is chosen
  RunPlan plan_;
};

// Whether a plan with more scratch runs the same requests as another one, with nearly its KV on the
// device.
bool costs_little(const RunPlan& plan, const RunPlan& other) {
  const MemoryPlan& memory = plan.memory;
  const MemoryPlan& least = other.memory;
  // A step's new KV needs places on the device.
  const std::int64_t step_pages = blocks_for(plan.prefill_chunk, plan.kv.block_tokens) *
                                  plan.kv.slab_pages() * plan.kv.sets.count();
  return plan.longest_request == other.longest_request && memory.batch_size == least.batch_size &&
         16 * step_pages <= memory.kv_pages && memory.streamed_layers == least.streamed_layers &&
         memory.kv_tokens_per_sequence == least.kv_tokens_per_sequence &&
         16 * memory.kv_pages >= 15 * least.kv_pages &&
         16 * memory.cache_pages >= 15 * least.cache_pages;
}

}  // namespace

OpsShape ops_shape(const ModelBundle& model, const RunOptions& options, const BatchLimits& limits,
                   const KvShape& kv) {
  const ModelConfig& config = model.config;
  const ContextClusters* clusters =
      needs_fixed_context(options.attention) ? model.clusters() : nullptr;
  const Lists lists =
      limits.sparse ? lists_of(*method_of(options, model), limits.context) : Lists{};
  return {.attention = {.heads = config.heads,
                        .kv_heads = config.kv_heads,
                        .head_dim = config.head_dim,
                        .max_query_rows = limits.rows,
                        .max_context = limits.context},
          .max_sequences = limits.segments,
          .layers = config.layers,
          .windows = !config.sliding_window.empty(),
          .max_list_tokens = lists.longest,
          .sequence_lists = lists.count,
          .fine_clusters = clusters == nullptr ? 0 : clusters->fine.count,
          .coarse_clusters = clusters == nullptr ? 0 : clusters->coarse.count,
          .prompt_unit_rows = prompt_units(options.attention, 0).rows,
          .clustered_tokens = clusters == nullptr ? 0 : clusters->clustered_tokens,
          .widest_input = std::max(
              {config.hidden_size, config.q_width(), config.plain_ffn(), config.embed_dim}),
          .max_sampled_rows = limits.logit_rows,
          .kv_dtype = kv.dtype,
          .partial_dtype = kv.partial_dtype,
          .page_tokens = kv.block_tokens};
}

std::int64_t default_batch_size(const ComputeMachine& machine) {
  if (!machine.gpu) return kDefaultBatchSize;
  const auto rows = static_cast<std::uint64_t>(2 * machine.gpu->multiprocessors);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::bit_floor(rows)),
                                  kDefaultBatchSize, kMostDefaultBatch);
}

bool may_give_on_demand(const RunOptions& options, const ComputeMachine& machine) {
  return !(machine.gpu && options.machine.deterministic);
}

RunPlan plan_run(const RunOptions& options, const ModelBundle& model,
                 const ComputeMachine& machine) {
  require_no_emulated_link(machine, options.machine.emulated_link);
  require_attention(machine, model.config, options.attention);
  const std::int64_t chosen = options.machine.prefill_chunk;
  RunPlan plan = Planner(options, model, machine, chosen > 0 ? chosen : kCpuPrefillChunk).plan();
  if (!machine.gpu || chosen > 0) return plan;
  RunOptions larger = options;
  for (std::int64_t rows = kGpuPrefillChunk; rows > kCpuPrefillChunk; rows /= 2) {
    larger.machine.prefill_chunk = rows;
    const std::optional<RunPlan> longer = try_plan_run(larger, model, machine);
    if (longer && costs_little(*longer, plan)) return *longer;
  }
  return plan;
}

std::optional<RunPlan> try_plan_run(const RunOptions& options, const ModelBundle& model,
                                    const ComputeMachine& machine) {
  try {
    return plan_run(options, model, machine);
  } catch (const Error& error) {
    if (error.role() != ErrorRole::kResources) throw;
    return std::nullopt;
  }
}

std::int64_t most_context(const RunOptions& options, const ModelConfig& config) {
  const std::int64_t asked = options.machine.max_context;
  return asked > 0 ? std::min(asked, config.max_positions) : config.max_positions;
}

std::uint64_t cluster_memory(const RunOptions& options, const ModelBundle& model) {
  if (!needs_fixed_context(options.attention) || !model.fixed_context) return 0;
  return cluster_bytes(model.fixed_context->clusters);
}

std::string describe(const RunPlan& plan, const ModelBundle& model) {
  std::string text = fmt::format(
      "plan: weights {}, scratch {}, KV {} ({} pages of {} tokens, {}) of {} device memory; batch "
      "{}, prefill chunk {} tokens, longest request {} of {} tokens",
      format_bytes(plan.memory.weights), format_bytes(plan.memory.scratch),
      format_bytes(plan.memory.kv), plan.memory.kv_pages, plan.kv.block_tokens,
      dtype_name(plan.kv.dtype), format_bytes(plan.budget), plan.memory.batch_size,
      plan.prefill_chunk, plan.longest_request, model.config.max_positions);
  if (plan.kv.sets.apart()) {
    text +=
        fmt::format("; {} of {} layers keep KV as far back as their window of {} tokens reaches",
                    plan.kv.layers - plan.kv.slab_pages(), plan.kv.layers, plan.kv.sets.window());
  }
  if (plan.memory.transposed_k > 0) {
    text += fmt::format("; K^T {} beside it (sparq.kt=off saves it)",
                        format_bytes(plan.memory.transposed_k));
  }
  if (model.fixed_context) {
    text += fmt::format("; fixed context {} tokens in front of every prompt",
                        model.fixed_context->tokens.size());
  }
  if (plan.memory.host_blocks > 0) {
    text += fmt::format("; policy {}: {} of KV on the host, {} staging", plan.policy->name(),
                        format_bytes(plan.memory.host_kv), format_bytes(plan.memory.staging));
    if (plan.memory.cache > 0) {
      text += fmt::format(", {} for tokens chosen again", format_bytes(plan.memory.cache));
    }
  }
  if (plan.input_tokens > 0) {
    text += fmt::format(
        "; K and V of the first {} tokens from cached INT8 hidden states, {} of them saved",
        plan.input_tokens, format_bytes(plan.memory.host_inputs));
  }
  if (plan.placement.streamed_layers > 0) {
    text += fmt::format("; weights of {} of {} layers streamed from the host",
                        plan.placement.streamed_layers, plan.kv.layers);
  }
  return text;
}

}  // namespace triphase
