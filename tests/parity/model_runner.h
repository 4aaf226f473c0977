#pragma once

// A checkpoint loaded for comparison: tokens in, logits out, one or several sequences, any
// chunking, any KV type. Uses the decoder as the engine does. Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "memory/host_device.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/decoder_model.h"
#include "models/weights/weights.h"

namespace triphase::parity {

// One sequence's new tokens in a forward call, and which of their rows to return.
struct Piece {
  SequenceId sequence;
  std::span<const TokenId> tokens;
  std::vector<std::int32_t> rows;
};

class ModelRunner {
 public:
  ModelRunner(const std::string& directory, DType kv_dtype, int threads = 1);

  // A new sequence; `prompt_tokens` decides dynamic RoPE's base, as at admission.
  [[nodiscard]] SequenceId start(std::size_t prompt_tokens);
  void finish(SequenceId sequence);

  // One forward call over the pieces. Returns the wanted rows' logits, in the pieces' order.
  [[nodiscard]] std::vector<std::vector<float>> forward(std::span<const Piece> pieces);

  // All of `tokens` as one new sequence in calls of at most `chunk` tokens; logits at `positions`
  // (ascending).
  [[nodiscard]] std::vector<std::vector<float>> logits(std::span<const TokenId> tokens,
                                                       std::span<const std::int32_t> positions,
                                                       std::int64_t chunk);

  // `count` greedy tokens after `prompt`.
  [[nodiscard]] std::vector<TokenId> greedy(std::span<const TokenId> prompt, std::size_t count);

  [[nodiscard]] const ModelConfig& config() const { return config_; }

 private:
  ModelConfig config_;
  ThreadPool threads_;
  HostDevice device_;
  MemoryPool pool_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ModelWeights> weights_;
  KvStore kv_;
  DecoderModel model_;
  std::vector<std::uint64_t> rope_keys_;  // by sequence
};

}  // namespace triphase::parity
