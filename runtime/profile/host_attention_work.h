#pragma once

// What a profile times of attention on the host: a step's rows attended where their KV lies, by the
// engine's own HostAttention, layer after layer.

#include <cstdint>
#include <vector>

#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/host_attention.h"
#include "models/kv_step.h"
#include "runtime/profile/grid_measurement.h"
#include "runtime/profile/model_work.h"

namespace triphase {

// `x` rows, each of a sequence of its own, that attend `y` tokens together: from K, V and queries
// on the device to results on it, all layers, the link included; nothing runs beside it, as in the
// engine, where a layer waits. At most `tokens` tokens, which have places on both tiers.
class HostAttentionWork final : public GridWork {
 public:
  HostAttentionWork(ModelRig& rig, TransferEngine& transfers, DType kv_dtype, std::int64_t tokens);
  [[nodiscard]] bool possible(double x, double y) const override;
  void begin(double x, double y) override;
  void run() override;
  void end() override;

 private:
  // Tokens of each row, its own included.
  [[nodiscard]] static std::int64_t context(double x, double y);

  ModelRig& rig_;
  MemoryPool host_pool_;
  KvStore store_;
  KvStep step_;
  HostAttention attention_;
  Buffer q_, out_;
  std::vector<std::int64_t> windows_;
  std::vector<SequenceId> sequences_;
  std::vector<BatchSegment> rows_;
};

}  // namespace triphase
