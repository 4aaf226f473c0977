#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_keys.h"
#include "kernels/cuda/select_row.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = kSelectThreads;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMostGroup = 8;
constexpr int kVector = 8;  // tokens of one lane
static_assert(kThreads == kMaxScoreDim, "a thread per channel");

// Fixed shared memory: the chosen channels' queries, channels, factors, sums, scratch, histogram.
static_assert(4 * (kMaxScoreDim * kMostGroup + kMaxScoreDim + 2 * kMostGroup +
                   2 * kBlockReduceWords + kSelectBins + 2) <=
              kSparqSelectFixedBytes);
static_assert(2 * kMaxScoreDim <= kSelectBins, "the histogram's place serves the channels' choice");

// What a row's logits need to know.
template <class T, int G>
struct Row {
  const ScoreKeys& keys;
  int sequence;
  int head;
  int length;
  int rank;
  const int* channel;     // [rank], shared
  const float* q_chosen;  // [rank][G], shared, with the softmax factor
  float* logits;          // [group][stride], shared
  int group;
  int stride;
};

// Eight consecutive tokens of channel c, but for the factor returned. `lambda` is the head's, for
// codes only.
template <class T>
__device__ inline float load_tokens(const T* from, const float* lambda, int c,
                                    std::int64_t head_dim, float (&value)[kVector]) {
  if constexpr (sizeof(T) == 1) {
    constexpr float kMagic = 8388608.0F;  // 2^23: the code is in its lowest bits
    const uint2 bits = load8(from);
    const float zero = kMagic + lambda[head_dim + c];
    TRIPHASE_UNROLL
    for (unsigned i = 0; i < kVector; ++i) {
      const unsigned number =
          byte_permute(i < 4 ? bits.x : bits.y, float_bits(kMagic), 0x7650U + i % 4);
      value[i] = bits_float(number) - zero;
    }
    return lambda[c];
  } else {
    const uint4 bits = load16(from);
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    TRIPHASE_UNROLL
    for (int i = 0; i < kVector / 2; ++i) {
      const float2 pair = unpack2<T>(words[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
    return 1.0F;
  }
}

// A full page by one warp from its transposed keys: lanes side by side hold eight tokens each of
// a channel, the rest of the warp takes other channels; sums over those at the end.
template <class T, int G>
__device__ inline void score_page(const Row<T, G>& row, int page_index) {
  const ScoreKeys& keys = row.keys;
  const int tokens = static_cast<int>(keys.page_tokens);
  const int lanes = tokens / kVector;
  const int side_by_side = kWarpSize / lanes;
  const std::int64_t entry = row.sequence * keys.max_pages + page_index;
  const std::int64_t page = keys.pages[entry];
  const T* from = static_cast<const T*>(keys.channels) +
                  (page * keys.kv_heads + row.head) * tokens * keys.head_dim +
                  lane_id() % lanes * kVector;
  const float* lambda = nullptr;
  if constexpr (sizeof(T) == 1) {
    lambda =
        keys.scales + (keys.scale_pages[entry] * 2 * keys.kv_heads + row.head) * 2 * keys.head_dim;
  }
  float sum[G][kVector] = {};
  for (int first = 0; first < row.rank; first += side_by_side) {
    const int i = first + lane_id() / lanes;
    if (i >= row.rank) continue;
    const int c = row.channel[i];
    float value[kVector];
    const float factor =
        load_tokens(from + static_cast<std::int64_t>(c) * tokens, lambda, c, keys.head_dim, value);
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      const float q = row.q_chosen[i * G + g] * factor;
      TRIPHASE_UNROLL
      for (int j = 0; j < kVector; ++j) sum[g][j] = fma_rn(q, value[j], sum[g][j]);
    }
  }
  for (int step = lanes; step < kWarpSize; step *= 2) {
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      TRIPHASE_UNROLL
      for (int j = 0; j < kVector; ++j) sum[g][j] += shuffle_xor(sum[g][j], step);
    }
  }
  if (lane_id() >= lanes) return;
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) {
    if (g >= row.group) continue;
    float* to = row.logits + g * row.stride + page_index * tokens + lane_id() * kVector;
    TRIPHASE_UNROLL
    for (int j = 0; j < kVector; ++j) to[j] = sum[g][j];
  }
}

// Tokens [first, end) by one warp, a token per lane, element by element.
template <class T, int G>
__device__ inline void score_tokens(const Row<T, G>& row, int first, int end) {
  for (int token = first + lane_id(); token < end; token += kWarpSize) {
    const bool partial = sizeof(T) == 1 && is_partial(row.keys, row.length, token);
    const KeyPlace<T> place =
        partial ? KeyPlace<T>{} : place_of<T>(row.keys, row.sequence, row.head, token);
    float logit[G] = {};
    for (int i = 0; i < row.rank; ++i) {
      const int c = row.channel[i];
      const float key = partial ? partial_value(row.keys, row.sequence, row.head, token, c)
                                : stored_value(place.row + c, place.lambda, c, row.keys.head_dim);
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) logit[g] = fma_rn(row.q_chosen[i * G + g], key, logit[g]);
    }
    for (int g = 0; g < row.group; ++g) row.logits[g * row.stride + token] = logit[g];
  }
}

// Logits become exponentials beside each head's maximum, which `total` sums up, and then every
// token's score. By the whole block. With one head in the group `scores` are its exponentials.
template <class T, int G>
__device__ __forceinline__ void weigh_tokens(const Row<T, G>& row, float* total, float* scores,
                                             float* reduce) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int g = 0; g < row.group; ++g) {
    float* own = row.logits + g * row.stride;
    float top = -INFINITY;
    for (int t = thread; t < row.length; t += kThreads) top = larger(top, own[t]);
    top = block_max(top, reduce);
    float sum = 0.0F;
    for (int t = thread; t < row.length; t += kThreads) {
      own[t] = exp2_fast(own[t] - top);
      sum += own[t];
    }
    sum = block_sum(sum, reduce);
    if (thread == 0) total[g] = sum;
  }
  __syncthreads();
  if (row.group == 1) return;
  for (int t = thread; t < row.length; t += kThreads) {
    float score = 0.0F;
    for (int g = 0; g < row.group; ++g) score += row.logits[g * row.stride + t] / total[g];
    scores[t] = score;
  }
  __syncthreads();
}

template <class T, int G>
__global__ void __launch_bounds__(kThreads, 2)
    sparq_select_kernel(SparqSelect call, SelectRows select, int stride) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, q_chosen, kMaxScoreDim* G);
  TRIPHASE_SHARED(int, channel, kMaxScoreDim);
  TRIPHASE_SHARED(float, factor, kMostGroup);
  TRIPHASE_SHARED(float, total, kMostGroup);
  TRIPHASE_SHARED(float, reduce, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, scan, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, bins, kSelectBins);
  TRIPHASE_SHARED(unsigned, found, 2);
  const ScoreKeys& keys = call.keys;
  const int thread = static_cast<int>(threadIdx.x);
  const auto row_index = static_cast<std::int64_t>(blockIdx.x);
  const int sequence = static_cast<int>(row_index / keys.kv_heads);
  const int head = static_cast<int>(row_index % keys.kv_heads);
  const int length = keys.lengths[sequence];
  const int group = static_cast<int>(call.queries.heads / keys.kv_heads);
  const int rank = static_cast<int>(call.rank);
  const float* q = call.queries.q + sequence * call.queries.q_stride + head * group * keys.head_dim;
  auto* logits = reinterpret_cast<float*>(bytes);
  float* scores = logits + (group > 1 ? group * stride : 0);

  choose_row_channels(
      q, group, static_cast<int>(keys.head_dim), rank, call.scale, channel, factor,
      {reinterpret_cast<float*>(bins), reinterpret_cast<int*>(bins) + kMaxScoreDim, reduce});
  for (int i = thread; i < rank * G; i += kThreads) {
    const int g = i % G;
    q_chosen[i] = g < group ? q[g * keys.head_dim + channel[i / G]] * factor[g] : 0.0F;
  }
  __syncthreads();

  const Row<T, G> row{keys, sequence, head, length, rank, channel, q_chosen, logits, group, stride};
  const int page_tokens = static_cast<int>(keys.page_tokens);
  const int pages = ceil_div(length, page_tokens);
  for (int page = uniform_warp_id(); page < pages; page += kWarps) {
    if (keys.channels != nullptr && page + 1 < pages) {
      score_page(row, page);
    } else {
      score_tokens(row, page * page_tokens, smaller(length, (page + 1) * page_tokens));
    }
  }
  __syncthreads();

  weigh_tokens(row, total, scores, reduce);

  const SelectRange range = select_range(select);
  const SelectCut cut = find_top_cut(
      scores, range, selected_entries(select, static_cast<int>(call.k)), {bins, scan, found});
  write_selected(select, scores, range, cut, scan);
  __syncthreads();  // the indices and their number, by other threads of this block
  const int count = select.counts[row_index];
  const std::int32_t* chosen = select.indices + row_index * select.capacity;
  for (int g = 0; g < group; ++g) {
    float share = 0.0F;
    for (int i = thread; i < count; i += kThreads) share += logits[g * stride + chosen[i]];
    share = block_sum(share, reduce);
    if (thread == 0) {
      call.alpha[row_index * group + g] = total[g] > 0.0F ? share / total[g] : 0.0F;
    }
  }
}

template <class Body>
void for_sparq_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      return body.template operator()<unsigned char>();
  }
}

}  // namespace

void sparq_select(const SparqSelect& call, StreamHandle stream) {
  const ScoreKeys& keys = call.keys;
  const auto shape = [&] {
    return shape_text({{"sequences", keys.sequences},
                       {"heads", call.queries.heads},
                       {"kv_heads", keys.kv_heads},
                       {"head_dim", keys.head_dim},
                       {"page_tokens", keys.page_tokens},
                       {"max_length", keys.max_length},
                       {"rank", call.rank},
                       {"k", call.k},
                       {"capacity", call.capacity}}) +
           ", keys " + std::string(dtype_name(keys.dtype));
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "sparq_select", what, shape);
  };
  const bool quantized = keys.dtype == DType::kInt8;
  check(quantized || keys.dtype == DType::kF16 || keys.dtype == DType::kBF16,
        "the keys must be F16, BF16 or U8");
  check(keys.kv_heads > 0 && call.queries.heads > 0 && call.queries.heads % keys.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  const std::int64_t group = call.queries.heads / keys.kv_heads;
  check(group <= kMostGroup, "1 to 8 query heads for each KV head");
  check(keys.head_dim > 0 && keys.head_dim <= kMaxScoreDim, "head_dim must be 1 to 256");
  check(call.rank >= 1 && call.rank <= keys.head_dim, "rank must be 1 to head_dim");
  check(keys.page_tokens == 32 || keys.page_tokens == 64 || keys.page_tokens == 128,
        "page_tokens must be 32, 64 or 128");
  check(keys.max_pages * keys.page_tokens >= keys.max_length, "the page table is too short");
  check(call.k >= 0 && call.sinks >= 0 && call.local >= 0 &&
            call.capacity >= smaller(keys.max_length, larger(call.k, call.sinks + call.local)),
        "capacity below k and the forced ranges");
  check(keys.keys != nullptr && keys.pages != nullptr && keys.lengths != nullptr &&
            call.queries.q != nullptr && call.indices != nullptr && call.counts != nullptr &&
            call.alpha != nullptr,
        "null pointer");
  check(!quantized || (keys.scales != nullptr && keys.scale_pages != nullptr &&
                       keys.partial_keys != nullptr && keys.partial_pages != nullptr),
        "INT8 keys need scales, their pages and the partial pages");
  const std::int64_t rows = keys.sequences * keys.kv_heads;
  if (rows == 0) return;
  const SelectRows select{.lengths = keys.lengths,
                          .rows = rows,
                          .rows_per_sequence = keys.kv_heads,
                          .max_length = keys.max_length,
                          .sinks = call.sinks,
                          .local = call.local,
                          .locals = call.locals,
                          .ks = call.ks,
                          .indices = call.indices,
                          .capacity = call.capacity,
                          .counts = call.counts};
  const std::int64_t stride = sparq_select_stride(keys.max_length);
  const auto shared = static_cast<std::size_t>(sparq_select_shared_bytes(group, keys.max_length));
  SparqSelect bounded = call;
  bounded.k = smaller(call.k, std::int64_t{1} << 30);
  for_sparq_type(keys.dtype, [&]<class T>() {
    for_group(group, "sparq_select", shape, [&]<int G>() {
      allow_shared_bytes(&sparq_select_kernel<T, G>, shared, "sparq_select", shape);
      TRIPHASE_LAUNCH((sparq_select_kernel<T, G>), static_cast<unsigned>(rows), kThreads, shared,
                      stream, bounded, select, static_cast<int>(stride));
    });
  });
  check_launched("sparq_select", shape);
}

}  // namespace triphase::cuda
