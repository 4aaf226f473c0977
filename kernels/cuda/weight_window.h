#pragma once

// Windows of attention weights (kernels/weight_window.h) on a GPU: SWA's sums. All pointers, those
// in windows and rows too, are device memory. Sums are whole numbers, added atomically: their bits
// do not depend on the order.

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/cuda/listed_scores.h"
#include "kernels/cuda/prefill_colsum.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/weight_window.h"

namespace triphase::cuda {

// Zeros, but for the entries. most_words: sums and bucket words of the largest window.
void clear_weights(const WeightWindow* windows, std::int64_t count, std::int64_t most_words,
                   StreamHandle stream);

// The weights of tokens [attended row][scores.capacity], a list each. most_entering: the largest
// step.count; most_expiring: the largest step.expired of exact windows, or context where buckets
// expire. beside: Launch::beside.
void add_weights(const WeightRow* rows, std::int64_t count, const std::int32_t* tokens,
                 const ListedScores& scores, std::int64_t most_entering, std::int64_t most_expiring,
                 std::int64_t layer, bool beside, StreamHandle stream);

// A chunk of a prompt, and its window: row i is added in a step that begins at begins[i].
struct WindowPart {
  ColumnPart rows;
  WeightWindow window;
  const std::int32_t* begins = nullptr;
  std::int64_t first_tile = 0;  // lay_out_tiles
};
static_assert(std::has_unique_object_representations_v<WindowPart>);
// Adds the rows of several chunks, in any order. Of the call what all have in common is looked at,
// and of its queries where the first one's are. `parts` are laid out, and `sent` are they in the
// device's memory. `totals`: scratch for tiles of all heads (prompt_total_floats() of kernels/
// sizing); with less there are more launches.
void add_prompt_rows(const PrefillColumns& call, std::span<const WindowPart> parts,
                     const WindowPart* sent, std::span<float> totals, StreamHandle stream);
// Sets first_tile.
void lay_out_tiles(const PrefillColumns& call, std::span<WindowPart> parts);

// For each row in each of the first `layers` layers the newest positions and those of the largest
// sums: tokens [layer][row][capacity], ascending, with room for every row's total; ties go to the
// smaller position. counts [layer][row].
void choose_heaviest(const WindowChoice* rows, std::int64_t count, std::int64_t layers,
                     std::int32_t* tokens, std::int64_t capacity, std::int32_t* counts,
                     StreamHandle stream);

}  // namespace triphase::cuda
