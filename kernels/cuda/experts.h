#pragma once

// Which experts each row goes through, and their rows in groups (Ops::experts). Arrays lie in
// device memory, laid out as kernels/sizing/expert_workspace.h says. Work is queued on `stream`.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// The per_row largest logits of each row of logits [T, E] F32, largest first, ties to the lower
// column: their columns [T, per_row], and their shares of a softmax over all columns or, with
// `over_chosen`, over these alone. NaN is the largest, so that it reaches the output. E up to 1024.
void choose_experts(ConstMatrix logits, std::int64_t per_row, bool over_chosen,
                    std::int32_t* experts, float* shares, StreamHandle stream);

struct ExpertGroups {
  const std::int32_t* experts = nullptr;  // [rows, per_row], those of a row differ
  std::int64_t rows = 0;
  std::int64_t per_row = 0;
  std::int64_t expert_count = 0;       // up to 1024
  std::int32_t* places = nullptr;      // [rows, per_row]: sorted by expert, then by row
  std::int32_t* place_rows = nullptr;  // by place: its row
  RowTile* tiles = nullptr;            // tile_count, of tile_rows rows at most; the last ones empty
  std::int64_t tile_count = 0;
  std::int64_t tile_rows = 0;
};
void group_rows(const ExpertGroups& groups, StreamHandle stream);

}  // namespace triphase::cuda
