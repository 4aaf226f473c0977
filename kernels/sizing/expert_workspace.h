#pragma once

// Workspace of Ops::experts as a pure function of shapes. No state; thread safe.

#include <cstdint>

namespace triphase {

struct ExpertShape {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;   // columns of a row
  std::int64_t experts = 0;  // at most kMaxRoutedExperts
  std::int64_t per_row = 0;  // experts that a row goes through
  std::int64_t ffn = 0;      // width of each

  // Pairs of a row and one of its experts.
  [[nodiscard]] std::int64_t choices() const { return rows * per_row; }
};
inline constexpr std::int64_t kMaxRoutedExperts = 1024;

// Byte offsets, multiples of 256. A place is a row of `outputs`; an expert's places are
// consecutive.
struct ExpertLayout {
  std::int64_t logits_at = 0;   // F32 [rows][experts]: the router's
  std::int64_t inner_at = 0;    // F32 [choices][ffn]; on the CPU [rows][2 * ffn] of one expert
  std::int64_t outputs_at = 0;  // F32 [choices][hidden]
  std::int64_t experts_at = 0;  // I32 [row][choice]
  std::int64_t shares_at = 0;   // F32 [row][choice]
  std::int64_t places_at = 0;   // I32 [row][choice]
  std::int64_t rows_at = 0;     // I32 [place]: the row that it comes from
  std::int64_t begins_at = 0;   // I32 [experts + 1]: the places of each on the CPU
  std::int64_t tiles_at = 0;    // I32 [tiles][4]: a GPU's parts of one expert's places
  std::int64_t bytes = 0;
};
[[nodiscard]] ExpertLayout expert_layout(const ExpertShape& shape);

// A GPU multiplies an expert's places in tiles of so many rows: few where most experts have few.
inline constexpr std::int64_t kFewExpertRows = 16;
inline constexpr std::int64_t kManyExpertRows = 64;
[[nodiscard]] std::int64_t expert_tile_rows(const ExpertShape& shape);
// The most tiles that there can be, whatever the router chooses.
[[nodiscard]] std::int64_t expert_tiles(const ExpertShape& shape, std::int64_t tile_rows);

}  // namespace triphase
