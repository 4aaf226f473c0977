#pragma once

// The feed-forward part of a layer with experts, over any Ops that choose experts: rows are grouped
// by expert, so that each expert's products run once, and put together again in the order of each
// row's own choices. So a row's result does not depend on the rows beside it.

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/weights/weights.h"

namespace triphase {

class ExpertMlp {
 public:
  // For calls of up to `rows` rows; takes nothing where no layer has experts.
  ExpertMlp(const ModelConfig& config, Ops& ops, std::int64_t rows, MemoryPool& pool);
  // Bytes that the constructor takes of the pool.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config, std::int64_t rows);

  // y = the experts' shares added up, plus y's old value when `accumulate`. x, y [T, hidden] F32; y
  // may alias x. up [T, up's columns of one expert] is overwritten.
  void compute(const LayerWeights& w, ConstMatrix x, Matrix up, bool accumulate, Matrix y,
               Stream& stream);

 private:
  // Sorts the rows' choices by expert: rows_, places_ and begin_.
  void group(std::int64_t rows);

  const ModelConfig* config_;
  Ops* ops_;
  Buffer logits_;                      // [rows, experts]
  Buffer gathered_;                    // [rows * per_token, hidden]: inputs by expert, then outputs
  std::vector<std::int32_t> experts_;  // [row][choice]
  std::vector<float> shares_;          // [row][choice]
  std::vector<std::int32_t> places_;   // [row][choice]: its row of gathered_
  std::vector<std::int32_t> rows_;     // by row of gathered_: the row it comes from
  std::vector<std::int32_t> begin_;    // by expert: its first row of gathered_; then the end
};

}  // namespace triphase
