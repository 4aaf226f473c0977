#include <string>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_colsum.h"

namespace triphase::cuda {
namespace {

std::string shape_of(const PrefillColumns& call) {
  return shape_text({{"queries", call.queries},
                     {"first_position", call.first_position},
                     {"row_begin", call.row_begin},
                     {"row_end", call.row_end},
                     {"window", call.window},
                     {"heads", call.heads},
                     {"kv_heads", call.kv_heads},
                     {"head_dim", call.head_dim},
                     {"page_tokens", call.page_tokens}}) +
         ", cache " + std::string(dtype_name(call.dtype));
}

// The rows that see any key from `first` on, and the end of the keys that any of them sees.
__device__ inline ColumnRows rows_below(const PrefillColumns& call, std::int64_t first) {
  ColumnRows rows = column_rows(call);
  if (call.keys == 0) rows.begin = larger(rows.begin, first);
  return rows;
}
__device__ inline std::int64_t keys_end(const PrefillColumns& call, const ColumnRows& rows) {
  return call.keys > 0 ? call.keys : rows.end;
}

// The prompts of a launch; none: the call is the only part.
struct Prompts {
  const ColumnPart* parts = nullptr;
  const ColumnPrompt* prompts = nullptr;
  std::int64_t count = 0;
  ColumnPrompt only{};
  const float* log_sums = nullptr;  // of the only part

  // The one that a key tile belongs to.
  __device__ ColumnPrompt find(std::int64_t tile) const {
    return count == 0 ? only : laid_out_at(prompts, count, tile);
  }
  __device__ __forceinline__ PrefillColumns call_of(const PrefillColumns& call, int part) const {
    return count == 0 ? call : of_part(call, parts[part]);
  }
  __device__ __forceinline__ const float* log_sums_of(int part) const {
    return count == 0 ? log_sums : parts[part].log_sums;
  }
};

// A block's tile of kKeys keys: of which parts, and where its sums lie.
struct SumTile {
  int first;  // key
  int end;    // of the prompt's keys
  int first_part;
  int end_part;
  float* sums;
};
template <int kKeys>
__device__ inline SumTile sum_tile(const PrefillColumns& call, const Prompts& prompts) {
  const ColumnPrompt prompt = prompts.find(blockIdx.x);
  const std::int64_t first = (blockIdx.x - prompt.first_tile) * kKeys;
  const auto end_part = static_cast<int>(prompt.first_part + prompt.parts);
  const PrefillColumns last = prompts.call_of(call, end_part - 1);
  return {static_cast<int>(first), static_cast<int>(keys_end(last, column_rows(last))),
          static_cast<int>(prompt.first_part), end_part,
          prompt.sums + blockIdx.y * prompt.sum_stride + first};
}

// The keys of a call before which none will change: INT8's own block is not yet codes.
__device__ inline std::int64_t keys_written(const PrefillColumns& call, std::int64_t end) {
  return call.dtype == DType::kInt8 ? (end - 1) / call.page_tokens * call.page_tokens : end;
}

// Block (key tile, KV head), one thread per key.
template <class T>
__global__ void __launch_bounds__(kColumnThreads, 5)
    prefill_colsum_kernel(PrefillColumns call, Prompts prompts) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, row_log_sums, kColumnRows);
  TRIPHASE_SHARED(int, positions, kColumnRows);
  const std::int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  const SumTile block = sum_tile<kColumnThreads>(call, prompts);
  const std::int64_t first = block.first;
  const std::int64_t token = first + thread;
  float sum = token < block.end && !call.fresh_sums ? block.sums[thread] : 0.0F;
  TRIPHASE_NO_UNROLL
  for (int part = block.first_part; part < block.end_part; ++part) {
    const PrefillColumns own_call = prompts.call_of(call, part);
    const float* const log_sums = prompts.log_sums_of(part);
    const ColumnRows rows = rows_below(own_call, first);
    if (rows.count() == 0) continue;
    const std::int64_t end = keys_end(own_call, rows);
    const ColumnTiles tiles(own_call, head, reinterpret_cast<float*>(bytes));
    __syncthreads();
    tiles.load_keys<T>(first, first_seen(own_call, rows.begin), end);
    const bool counts =
        call.key_counts == nullptr || (token < end && counted_keys(call, head, token) > 0.0F);
    TRIPHASE_NO_UNROLL
    for (std::int64_t row = 0; row < rows.count(); row += kColumnRows) {
      __syncthreads();
      tiles.load_rows(rows, row);
      if (thread < kColumnRows) {
        const std::int64_t own = row + thread;
        const std::int64_t position = rows.position(own);
        positions[thread] = own < rows.count() ? static_cast<int>(position) : -1;
        if (own < rows.count()) {
          row_log_sums[thread] = log_sums[(position - own_call.first_position) * call.heads +
                                          head * rows.group + own % rows.group] *
                                 kLog2E;
        }
      }
      __syncthreads();
      float dot[kColumnRows];
      tiles.multiply(dot);
      TRIPHASE_UNROLL
      for (int i = 0; i < kColumnRows; ++i) {
        if (counts && positions[i] >= 0 && token < seen_end(own_call, positions[i]) &&
            token >= first_seen(own_call, positions[i])) {
          sum += exp2_fast(dot[i] - row_log_sums[i]);
        }
      }
    }
  }
  if (token < block.end) block.sums[thread] = sum;
}

// The same on tensor cores. Block (tile of kSumKeys keys, KV head).
template <class T, int kDim>
__global__ void __launch_bounds__(ColumnSums<T, kDim>::kThreads, ColumnSums<T, kDim>::kBlocks)
    prefill_sum_scores_kernel(PrefillColumns call, Prompts prompts) {
  using Tiles = ColumnSums<T, kDim>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(uint4, row_facts, Tiles::kRows);  // tokens seen from and to, and the log-sum
  // Of the part: kept here, for keys and weights take all registers.
  TRIPHASE_SHARED(const float*, part_rows, 2);  // of q, and of log-sums
  TRIPHASE_SHARED(int, part_first, 2);          // position, and the window
  const std::int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  const SumTile block = sum_tile<kSumKeys>(call, prompts);
  const int first = block.first;
  typename Tiles::Sums sum;
  TRIPHASE_UNROLL
  for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = Tiles::key(tile, half);
      sum[tile][half] = first + key < block.end && !call.fresh_sums ? block.sums[key] : 0.0F;
    }
  }
  Tiles tiles(call, bytes);
  bool keeps_keys = false;  // of the part before
  TRIPHASE_NO_UNROLL
  for (int part = block.first_part; part < block.end_part; ++part) {
    const PrefillColumns own_call = prompts.call_of(call, part);
    const float* const log_sums = prompts.log_sums_of(part);
    const ColumnRows rows = rows_below(own_call, first);
    if (rows.count() == 0) continue;
    const std::int64_t end = keys_end(own_call, rows);
    const std::int64_t begin_seen = larger<std::int64_t>(first, first_seen(own_call, rows.begin));
    // Whole blocks of a cache are the same for the parts behind them.
    const bool whole = first + kSumKeys <= keys_written(own_call, end);
    if (!whole || !keeps_keys) tiles.load_keys(own_call, head, first, begin_seen, end);
    keeps_keys = whole;
    const auto count = static_cast<int>(rows.count());
    const auto group = static_cast<unsigned>(rows.group);
    const std::int64_t begin = rows.begin - own_call.first_position;
    if (thread == 0) {
      part_rows[0] = own_call.q + begin * call.q_stride + head * rows.group * call.head_dim;
      part_rows[1] = log_sums + begin * call.heads + head * rows.group;
      part_first[0] = static_cast<int>(rows.begin);
      part_first[1] = static_cast<int>(smaller<std::int64_t>(own_call.window, INT32_MAX));
    }
    TRIPHASE_NO_UNROLL
    for (int row = 0; row < count; row += Tiles::kRows) {
      __syncthreads();
      tiles.load_rows([&](int i) -> const float* {
        if (row + i >= count) return nullptr;
        const auto at = static_cast<unsigned>(row + i);
        return part_rows[0] + at / group * call.q_stride + at % group * call.head_dim;
      });
      if (thread < Tiles::kRows) {
        const bool there = row + thread < count;
        const auto at = static_cast<unsigned>(there ? row + thread : row);
        const int position = part_first[0] + static_cast<int>(at / group);
        const int from = part_first[1] > 0 ? larger(0, position + 1 - part_first[1]) : 0;
        const int to = there ? static_cast<int>(seen_end(call, position)) : 0;
        const float log_sum = part_rows[1][at / group * call.heads + at % group] * kLog2E;
        row_facts[thread] = make_uint4(static_cast<unsigned>(from), static_cast<unsigned>(to),
                                       float_bits(log_sum), 0U);
      }
      __syncthreads();
      typename Tiles::Scores weight;
      tiles.multiply(weight);
      TRIPHASE_UNROLL
      for (int n = 0; n < Tiles::kRowTiles; ++n) {
        TRIPHASE_UNROLL
        for (int column = 0; column < 2; ++column) {
          const uint4 facts = load_shared16(row_facts + n * 8 + lane_id() % 4 * 2 + column);
          TRIPHASE_UNROLL
          for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
            TRIPHASE_UNROLL
            for (int half = 0; half < 2; ++half) {
              float& value = weight[tile][n][2 * half + column];
              const auto token = static_cast<unsigned>(first + Tiles::key(tile, half));
              const bool sees = token >= facts.x && token < facts.y;
              value = sees ? exp2_fast(value - bits_float(facts.z)) : 0.0F;
            }
          }
        }
      }
      Tiles::add(weight, sum);
    }
  }
  if (lane_id() % 4 != 0) return;
  // Found once more: the loop has no registers to keep it.
  const SumTile to = sum_tile<kSumKeys>(call, prompts);
  TRIPHASE_UNROLL
  for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = Tiles::key(tile, half);
      if (to.first + key >= to.end) continue;
      if constexpr (std::is_same_v<T, float>) {
        const bool counts = counted_keys(call, head, to.first + key) > 0.0F;
        if (counts || call.fresh_sums) to.sums[key] = counts ? sum[tile][half] : 0.0F;
      } else {
        to.sums[key] = sum[tile][half];
      }
    }
  }
}

// `tiles` of keys, of all prompts.
template <class Shape>
void launch(const PrefillColumns& call, const Prompts& prompts, std::int64_t tiles,
            const Shape& shape, StreamHandle stream) {
  if (tiles == 0) return;
  const dim3 grid{static_cast<unsigned>(tiles), static_cast<unsigned>(call.kv_heads), 1};
  const std::size_t shared = column_tile_bytes(call.head_dim);
  for_cache_type(call.dtype, "prefill_colsum", shape, [&]<class T>() {
    const auto on_tiles = [&]<int kDim>() {
      constexpr std::size_t kBytes = ColumnSums<T, kDim>::kBytes;
      static_assert(kBytes <= std::size_t{48} << 10);
      TRIPHASE_LAUNCH((prefill_sum_scores_kernel<T, kDim>), grid, (ColumnSums<T, kDim>::kThreads),
                      kBytes, stream, call, prompts);
    };
    const bool on_tensor_cores = column_scores_serve(call);
    if (on_tensor_cores && call.head_dim <= 64) return on_tiles.template operator()<64>();
    if (on_tensor_cores) return on_tiles.template operator()<128>();
    allow_shared_bytes(&prefill_colsum_kernel<T>, shared, "prefill_colsum", shape);
    TRIPHASE_LAUNCH((prefill_colsum_kernel<T>), grid, kColumnThreads, shared, stream, call,
                    prompts);
  });
  check_launched("prefill_colsum", shape);
}

std::int64_t key_tiles(const PrefillColumns& call, std::int64_t keys) {
  return ceil_div<std::int64_t>(keys, column_scores_serve(call) ? kSumKeys : kColumnThreads);
}

std::int64_t tokens_of(std::span<const ColumnPart> parts, const ColumnPrompt& prompt) {
  const ColumnPart& last = parts[static_cast<std::size_t>(prompt.first_part + prompt.parts - 1)];
  return last.first_position + last.queries;
}

}  // namespace

void check_columns(const PrefillColumns& call, const char* kernel) {
  const std::int64_t context = call.first_position + call.queries;
  const LaunchCheck check(kernel, [&] { return shape_of(call); });
  check(call.kv_heads > 0 && call.heads <= kMostGridY && call.heads > 0 &&
            call.heads % call.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(call.head_dim > 0 && call.head_dim <= kColumnMaxDim, "head_dim must be 1 to 256");
  check(call.page_tokens > 0 && call.first_position >= 0 && call.queries >= 0 && call.window >= 0,
        "sizes");
  check(call.q != nullptr && call.k != nullptr && call.pages != nullptr, "null pointer");
  check(call.dtype != DType::kInt8 || (call.scales != nullptr && call.scale_pages != nullptr &&
                                       call.partial_k != nullptr && call.partial_page >= 0),
        "an INT8 cache needs scales, their pages and the partial page");
  check(call.keys == 0 || (call.dtype == DType::kF32 && call.page_tokens == call.keys &&
                           call.key_counts != nullptr && call.window == 0),
        "centroids are F32 keys of one page, with counts");
  check(!call.fresh_sums || call.keys > 0, "sums of tokens go on from what is there");
  check(call.dtype != DType::kInt8 || call.queries == 0 ||
            call.first_position >= (context - 1) / call.page_tokens * call.page_tokens,
        "INT8 queries of more than one block");
}

void prefill_colsum(const PrefillColumns& call, const float* log_sums, float* sums,
                    std::int64_t sum_stride, StreamHandle stream) {
  check_columns(call, "prefill_colsum");
  const std::int64_t rows_end = smaller(call.row_end, call.first_position + call.queries);
  const std::int64_t keys = call.keys > 0 ? call.keys : rows_end;
  const auto shape = [&] {
    return shape_of(call) + ", " + shape_text({{"sum_stride", sum_stride}});
  };
  require(sum_stride >= keys, "prefill_colsum", "sum_stride below the context", shape);
  require(log_sums != nullptr && sums != nullptr, "prefill_colsum", "null pointer", shape);
  if (rows_end <= larger(call.row_begin, call.first_position)) return;
  const Prompts prompts{.only = {.sums = sums, .sum_stride = sum_stride}, .log_sums = log_sums};
  launch(call, prompts, key_tiles(call, keys), shape, stream);
}

void prefill_colsum(const PrefillColumns& call, const ColumnBatch& batch, StreamHandle stream) {
  const auto shape = [&] {
    return shape_of(call) + ", " +
           shape_text({{"parts", static_cast<std::int64_t>(batch.parts.size())},
                       {"prompts", static_cast<std::int64_t>(batch.prompts.size())}});
  };
  const LaunchCheck check("prefill_colsum", shape);
  for (const ColumnPart& part : batch.parts) {
    check_columns(of_part(call, part), "prefill_colsum");
    check(part.log_sums != nullptr, "null pointer");
  }
  if (batch.prompts.empty()) return;
  check(batch.sent_parts != nullptr && batch.sent_prompts != nullptr && call.keys == 0,
        "null pointer, or centroids");
  std::int64_t tiles = 0;
  for (const ColumnPrompt& prompt : batch.prompts) {
    check(prompt.parts > 0 && prompt.first_part >= 0 &&
              prompt.first_part + prompt.parts <= std::ssize(batch.parts) &&
              prompt.first_tile == tiles,
          "prompts that are not laid out");
    const std::int64_t tokens = tokens_of(batch.parts, prompt);
    check(prompt.sums != nullptr && prompt.sum_stride >= tokens, "sum_stride below the context");
    tiles += key_tiles(call, tokens);
  }
  launch(call,
         {.parts = batch.sent_parts,
          .prompts = batch.sent_prompts,
          .count = std::ssize(batch.prompts)},
         tiles, shape, stream);
}

void lay_out_tiles(const PrefillColumns& call, std::span<const ColumnPart> parts,
                   std::span<ColumnPrompt> prompts) {
  std::int64_t tiles = 0;
  for (ColumnPrompt& prompt : prompts) {
    prompt.first_tile = tiles;
    tiles += key_tiles(call, tokens_of(parts, prompt));
  }
}

}  // namespace triphase::cuda
