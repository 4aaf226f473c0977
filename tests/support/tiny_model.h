#pragma once

// A small random model with everything an Engine needs, for tests of batching and scheduling. The
// numbers mean nothing; what is tested is that they never change.

#include <memory>

#include "memory/kv/kv_store.h"
#include "memory/transfer/host_transfer_engine.h"
#include "models/decoder_model.h"
#include "models/weights/weights.h"
#include "runtime/backend.h"
#include "runtime/engine/engine.h"
#include "runtime/job/prompt_preparer.h"
#include "scheduler/memory_plan.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"

namespace triphase {

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.model_type = "llama";
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn_size = 48;
  config.vocab_size = 257;
  config.max_positions = 160;
  config.embed_dim = 32;
  config.norms.eps = 1e-5;
  config.rope = RopeConfig{.theta = 10000.0, .rotary_dim = 8};
  config.eos_ids = {256};
  return config;
}

struct TinyModelOptions {
  std::int64_t batch_size = 4;
  std::int64_t prefill_chunk = 16;
  std::int64_t block_tokens = 8;
  std::int64_t kv_blocks = 200;  // slabs: of all layers each, unless layers are apart
  bool windows_apart = false;    // layers with windows keep KV as far as these reach (LayerSets)
  std::int64_t threads = 1;
  std::uint64_t job_seed = 0;
  DType dtype = DType::kF16;
  AttentionOptions attention;
  const ContextClusters* clusters = nullptr;  // of squeezed; must outlive the model
  bool int8 = false;                          // INT8 KV; `dtype` is then that of partial blocks
  // Host tier, streaming and policy; the policy's default is device-only.
  std::int64_t host_blocks = 0;     // of all layers each
  std::int64_t staging_blocks = 0;  // of one layer each
  std::int64_t cache_blocks = 0;    // of all layers each: for chosen tokens
  std::int64_t column_blocks = 0;   // of all layers each: K^T beside that of the device's own, of
                                    // blocks that are on the host
  std::int64_t input_tokens = 0;    // leading ones whose K and V come from INT8 hidden states
  std::int64_t input_blocks = 0;    // of all layers each: for cached hidden states
  std::int64_t streamed_layers = 0;
  bool prefetch = true;
  bool host_attention = false;  // decoded rows of lines on the host are attended there
  std::optional<EmulatedLink> link;
  Device* device = nullptr;  // of both tiers, instead of the backend's
  std::shared_ptr<const PlacementPolicy> policy = std::make_shared<DeviceOnlyPolicy>();
};

class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options, ModelConfig config = tiny_config())
      : config_(std::move(config)),
        policy_(options.policy),
        backend_(Backend::open("cpu", options.threads)),
        pool_(memory_of(options), MemoryTier::kDevice, std::uint64_t{1} << 30),
        host_pool_(memory_of(options), MemoryTier::kHost, std::uint64_t{1} << 30),
        host_weights_(host_pool_, MemoryTag::kWeights),
        transfers_(options.link),
        weights_(random_weights(config_, options.dtype, 7,
                                {memory_of(options), host_weights_, options.streamed_layers}, {})),
        kv_(kv_shape(options),
            {.device_pages = options.kv_blocks * kv_shape(options).slab_pages(),
             .staging_pages = options.staging_blocks,
             .cache_pages = options.cache_blocks * kv_shape(options).slab_pages(),
             .partial_pages = partial_pages_needed(kv_shape(options).dtype, config_.layers,
                                                   options.block_tokens, 2 * options.batch_size,
                                                   options.batch_size + options.prefill_chunk),
             .host_blocks = options.host_blocks,
             .input_blocks = options.input_blocks,
             .transposed_k_blocks =
                 kv_shape(options).transposed_k ? options.kv_blocks + options.column_blocks : 0,
             // Four blocks, of F32 and of as few tokens as tests use.
             .transposed_k_run_bytes = 16 * options.block_tokens,
             .step_tokens = options.prefill_chunk},
            pool_, &host_pool_, &transfers_),
        model_(config_, *weights_, backend_->ops(), backend_->threads().threads(),
               {options.batch_size + options.prefill_chunk, options.batch_size,
                options.batch_size + options.prefill_chunk, config_.max_positions,
                options.attention.kind != AttentionKind::kDense,
                options.input_tokens > 0 ? options.block_tokens : 0, options.input_tokens},
               pool_, &transfers_),
        preparer_(config_, nullptr,
                  {.context = config_.max_positions, .kv_tokens = longest_request(options)}),
        engine_({options.batch_size, options.prefill_chunk, options.job_seed}, *policy_, model_,
                kv_, nullptr, *backend_, &preparer_) {
    model_.attention().set_method(options.attention, backend_->sparse_ops(), pool_,
                                  options.clusters);
    model_.attention().set_hidden_states(options.input_tokens, backend_->input_ops(), pool_);
    if (options.host_attention) {
      model_.attention().set_host_attention(options.batch_size, backend_->host_ops(), host_pool_);
    }
    if (const auto* flexgen = dynamic_cast<const FlexGenPolicy*>(policy_.get())) {
      model_.zigzag().set_batch(flexgen->options().gpu_batch);
    }
    model_.set_prefetch(options.prefetch);
    make_resolver(options);
  }

  // Has room for logits of every row, as scores of prompts want them.
  Engine& engine() { return engine_; }
  KvStore& kv() { return kv_; }
  DecoderModel& model() { return model_; }
  Backend& backend() { return *backend_; }
  HostTransferEngine& transfers() { return transfers_; }
  MemoryPool& pool() { return pool_; }
  MemoryPool& host_pool() { return host_pool_; }

 private:
  void make_resolver(const TinyModelOptions& options) {
    const AttentionRunner* attention = model_.attention().runner();
    if (attention == nullptr || options.host_blocks == 0) return;
    const AttentionMethod& method = attention->method();
    if (!method.fetches_tokens()) return;
    const bool recomputes = options.input_blocks > 0 && method.lists() == 1;
    resolver_ = backend_->make_resolver(
        {.layers = kv_.memory().shape().slab_pages(),
         .lists = method.lists(),
         .block_tokens = options.block_tokens,
         .rows = options.batch_size,
         .batch_rows = options.batch_size + options.prefill_chunk,
         .row_blocks = config_.max_positions / options.block_tokens + 1,
         .list_tokens = config_.max_positions,
         .early = method.chooses_early(),
         .quantized = options.int8,
         .recomputes = recomputes,
         .host_blocks = options.host_blocks,
         .input_blocks = recomputes ? options.input_blocks : 0,
         .hot_rows = options.cache_blocks * options.block_tokens,
         .first_hot_slot =
             (kv_.memory().sizes().device_pages + options.staging_blocks) * options.block_tokens},
        lookup_memory_);
    model_.attention().kv_step().set_resolver(resolver_.get());
  }
  [[nodiscard]] Device& memory_of(const TinyModelOptions& options) const {
    return options.device != nullptr ? *options.device : backend_->device();
  }
  [[nodiscard]] KvShape kv_shape(const TinyModelOptions& options) const {
    return {.layers = config_.layers,
            .kv_heads = config_.kv_heads,
            .head_dim = config_.head_dim,
            .block_tokens = options.block_tokens,
            .dtype = options.int8 ? DType::kInt8 : options.dtype,
            .partial_dtype = options.dtype,
            .transposed_k = keeps_transposed_k(options.attention),
            .input_width = options.input_tokens > 0 ? config_.hidden_size : 0,
            .host_attention = options.host_attention,
            .sets = options.windows_apart ? LayerSets(config_.sliding_window) : LayerSets()};
  }
  [[nodiscard]] std::int64_t longest_request(const TinyModelOptions& options) const {
    const std::int64_t longest = policy_->longest_request({.layers = config_.layers,
                                                           .block_tokens = options.block_tokens,
                                                           .device_blocks = options.kv_blocks,
                                                           .host_blocks = options.host_blocks,
                                                           .batch_size = options.batch_size,
                                                           .prefill_chunk = options.prefill_chunk,
                                                           .windows = kv_.book().window_shape()});
    const std::int64_t staged = options.host_blocks > 0
                                    ? options.staging_blocks * options.block_tokens
                                    : config_.max_positions;
    return std::min({config_.max_positions, longest, staged});
  }

  ModelConfig config_;
  std::shared_ptr<const PlacementPolicy> policy_;
  std::unique_ptr<Backend> backend_;
  MemoryPool pool_;
  MemoryPool host_pool_;
  PoolDevice host_weights_;
  PoolDevice lookup_memory_{pool_, MemoryTag::kSelection};
  HostTransferEngine transfers_;
  std::unique_ptr<ModelWeights> weights_;
  KvStore kv_;
  DecoderModel model_;
  PromptPreparer preparer_;
  Engine engine_;
  std::unique_ptr<KvResolver> resolver_;  // null: nothing is looked up
};

}  // namespace triphase
