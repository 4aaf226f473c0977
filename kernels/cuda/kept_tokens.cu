#include <string>

#include "kernels/cuda/kept_tokens.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/select_row.h"
#include "kernels/cuda/token_weights.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

// Block: a list of a view.
__global__ void __launch_bounds__(kThreads)
    keep_all_kernel(const KeptTokens* views, std::int64_t lists, int tokens) {
  const KeptTokens kept = views[blockIdx.x / lists];
  const std::int64_t first = blockIdx.x % lists * kept.room;
  for (int t = static_cast<int>(threadIdx.x); t < tokens; t += kThreads) {
    kept.tokens[first + t] = t;
    kept.sums[first + t] = 0.0F;
  }
}

// Moves what stays of a list to its front, and to the selection. A thread holds its entries from
// before the scan that says where they go: by then every thread of the block has read its own, and
// entries of later steps lie behind all that is written.
struct KeepEntries {
  std::int32_t* tokens;
  float* sums;
  std::int32_t* to;
  std::int64_t capacity;
  std::int32_t token[kSelectOwn];
  float sum[kSelectOwn];

  __device__ void read(int i, int entry) {
    token[i] = tokens[entry];
    sum[i] = sums[entry];
  }
  __device__ void write(int i, int, unsigned place) {
    device_check(place < static_cast<unsigned>(capacity));
    tokens[place] = token[i];
    sums[place] = sum[i];
    to[place] = token[i];
  }
};

// Block (list of a row, layer).
__global__ void __launch_bounds__(kSelectThreads)
    keep_heaviest_kernel(const KeptRow* rows, std::int64_t lists, std::int32_t* selected,
                         std::int64_t capacity, std::int32_t* counts) {
  TRIPHASE_SHARED(unsigned, bins, kSelectBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const KeptRow row = rows[blockIdx.x / lists];
  const KeptTokens kept = in_layer(row.kept, blockIdx.y);
  const std::int64_t first = blockIdx.x % lists * kept.room;
  std::int32_t* tokens = kept.tokens + first;
  float* sums = kept.sums + first;
  const auto length = static_cast<int>(row.count + row.added);
  for (int t = static_cast<int>(row.count) + static_cast<int>(threadIdx.x); t < length;
       t += kSelectThreads) {
    tokens[t] = static_cast<std::int32_t>(row.context) - length + t;
    sums[t] = 0.0F;
  }
  __syncthreads();
  const auto local = static_cast<int>(smaller<std::int64_t>(row.local, length));
  const SelectRange range{length, length - local};
  const auto total = static_cast<int>(smaller<std::int64_t>(row.total, length));
  const SelectCut cut = find_top_cut(sums, range, total, {bins, scratch, found});
  const std::int64_t list = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  KeepEntries entries{tokens, sums, selected + list * capacity, capacity, {}, {}};
  const unsigned left = compact_selected(sums, range, cut, scratch, entries);
  if (threadIdx.x == 0) counts[list] = static_cast<std::int32_t>(left);
}

// Block (list of a row, tokens).
__global__ void __launch_bounds__(kThreads, 8)
    add_kept_weights_kernel(const KeptWeights* rows, std::int64_t lists, ListedScores scores,
                            std::int64_t layer) {
  const KeptWeights row = rows[blockIdx.x / lists];
  const std::int64_t list = blockIdx.x % lists;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= row.count) return;
  float* sum = in_layer(row.kept, layer).sums + list * row.kept.room + i;
  *sum = add_rn(*sum, weight_of(scores, row.attended * lists + list, i, 0, 1));
}

// A block for each list.
template <class Shape>
unsigned blocks_of(std::int64_t count, std::int64_t lists, const char* kernel, const Shape& shape) {
  constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
  require(count >= 0 && lists > 0 && count * lists <= kLargest, kernel, "too many lists", shape);
  return static_cast<unsigned>(count * lists);
}

}  // namespace

void keep_all(const KeptTokens* kept, std::int64_t count, std::int64_t lists, std::int64_t tokens,
              StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"count", count}, {"lists", lists}, {"tokens", tokens}});
  };
  require(kept != nullptr && tokens >= 0, "keep_all", "null pointer or no tokens", shape);
  const unsigned blocks = blocks_of(count, lists, "keep_all", shape);
  if (blocks == 0 || tokens == 0) return;
  TRIPHASE_LAUNCH((keep_all_kernel), blocks, kThreads, 0, stream, kept, lists,
                  static_cast<int>(tokens));
  check_launched("keep_all", shape);
}

void keep_heaviest(const KeptRow* rows, std::int64_t count, std::int64_t lists, std::int64_t layers,
                   std::int32_t* tokens, std::int64_t capacity, std::int32_t* counts,
                   StreamHandle stream) {
  const auto shape = [&] {
    return shape_text(
        {{"rows", count}, {"lists", lists}, {"layers", layers}, {"capacity", capacity}});
  };
  require(rows != nullptr && tokens != nullptr && counts != nullptr && capacity >= 0,
          "keep_heaviest", "null pointer", shape);
  require(layers > 0 && layers <= kMostGridY, "keep_heaviest", "too many layers", shape);
  const unsigned blocks = blocks_of(count, lists, "keep_heaviest", shape);
  if (blocks == 0) return;
  const dim3 grid{blocks, static_cast<unsigned>(layers), 1};
  TRIPHASE_LAUNCH((keep_heaviest_kernel), grid, kSelectThreads, 0, stream, rows, lists, tokens,
                  capacity, counts);
  check_launched("keep_heaviest", shape);
}

void add_kept_weights(const KeptWeights* rows, std::int64_t count, std::int64_t lists,
                      const ListedScores& scores, std::int64_t most_tokens, std::int64_t layer,
                      bool beside, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", count},
                       {"lists", lists},
                       {"heads", scores.heads},
                       {"capacity", scores.capacity},
                       {"most_tokens", most_tokens}});
  };
  require(rows != nullptr && scores.values != nullptr && scores.softmax != nullptr,
          "add_kept_weights", "null pointer", shape);
  constexpr std::int64_t kMostTokens = kMostGridY * kThreads;
  require(scores.heads > 0 && most_tokens >= 0 && most_tokens <= scores.capacity &&
              most_tokens <= kMostTokens,
          "add_kept_weights", "no heads, or more tokens than lists have room for", shape);
  const unsigned blocks = blocks_of(count, lists, "add_kept_weights", shape);
  if (blocks == 0 || most_tokens == 0) return;
  const dim3 grid{blocks, static_cast<unsigned>(ceil_div<std::int64_t>(most_tokens, kThreads)), 1};
  TRIPHASE_LAUNCH((add_kept_weights_kernel), grid, kThreads, 0, LaunchOn(stream, beside), rows,
                  lists, scores, layer);
  check_launched("add_kept_weights", shape);
}

}  // namespace triphase::cuda
