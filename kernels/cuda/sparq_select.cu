#include <string>
#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_keys.h"
#include "kernels/cuda/select_weights.h"
#include "kernels/cuda/sparq_scores.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kMostGroup = static_cast<int>(kGpuMaxScoredGroup);
static_assert(kRowThreads<1> >= kMaxScoreDim, "a thread per channel");
constexpr int kReduceWords = kMostGroup * 2 * kSelectThreads / kWarpSize;
static_assert(kReduceWords >= kBlockReduceWords);

// Fixed shared memory: the chosen channels' queries, channels, factors, scratch, histogram.
static_assert(4 * (kMaxScoreDim * kMostGroup + kMaxScoreDim + kMostGroup + kReduceWords +
                   kBlockReduceWords + kSelectBins + 5) <=
              kSparqSelectFixedBytes);
static_assert(kMaxScoreDim + 2 * kMostGroup * kChannelWarps + kChannelWarps <= kSelectBins,
              "the histogram's place serves the channels' choice");
static_assert(kSelectCandidates <= kMaxScoreDim, "theirs serves the tokens in the cut's bin");

// That the registers must allow: four blocks of one head hide the latency of choosing.
template <class T, int G>
constexpr int kBlocks = G == 1   ? (sizeof(T) == 2 ? 4 : 3)
                        : G == 2 ? 2
                                 : 1;

__device__ inline void count_weight(float weight, int token, SelectRange range, unsigned* bins) {
  if (token < range.end) atomic_add(&bins[weight_bin(weight)], 1U);
}

// Each head's sum or largest value over the block.
template <int G>
__device__ __forceinline__ void add_heads(float (&value)[G], float* scratch) {
  block_reduce_each<kRowThreads<G> / kWarpSize>(value, scratch, 0.0F,
                                                [](float a, float b) { return a + b; });
}
template <int G>
__device__ __forceinline__ void find_tops(float (&value)[G], float* scratch) {
  block_reduce_each<kRowThreads<G> / kWarpSize>(value, scratch, -INFINITY,
                                                [](float a, float b) { return larger(a, b); });
}

// Logits become exponentials beside each head's maximum, which `total` sums up, and then every
// token's score, which is counted in its bin. By the whole block; `top` is a thread's own. With one
// head in the group `scores` are its exponentials.
template <class T, int G>
__device__ __forceinline__ void weigh_tokens(const SparqRow<T, G>& row, float (&top)[G],
                                             SelectRange range, float (&total)[G], float* scores,
                                             unsigned* bins, float* reduce) {
  const int begin = 4 * static_cast<int>(threadIdx.x);
  constexpr int kRound = 4 * kRowThreads<G>;
  find_tops(top, reduce);
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) {
    total[g] = 0.0F;
    if (g >= row.group) continue;
    float* own = row.logits + g * row.stride;
    for (int first = begin; first < row.length; first += kRound) {
      const uint4 words = load_shared16(own + first);
      unsigned bits[4] = {words.x, words.y, words.z, words.w};
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first + i >= row.length) continue;
        const float weight = exp2_fast(bits_float(bits[i]) - top[g]);
        bits[i] = float_bits(weight);
        total[g] += weight;
        if (row.group == 1) count_weight(weight, first + i, range, bins);
      }
      store16(own + first, make_uint4(bits[0], bits[1], bits[2], bits[3]));
    }
  }
  add_heads(total, reduce);
  if (row.group == 1) return;
  float part[G];
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) part[g] = g < row.group ? 1.0F / total[g] : 0.0F;
  for (int first = begin; first < row.length; first += kRound) {
    float score[4] = {};
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      if (g >= row.group) continue;
      const uint4 words = load_shared16(row.logits + g * row.stride + first);
      const unsigned bits[4] = {words.x, words.y, words.z, words.w};
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) score[i] = fma_rn(bits_float(bits[i]), part[g], score[i]);
    }
    store16(scores + first, make_uint4(float_bits(score[0]), float_bits(score[1]),
                                       float_bits(score[2]), float_bits(score[3])));
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) count_weight(score[i], first + i, range, bins);
  }
  __syncthreads();
}

template <class T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kBlocks<T, G>)
    sparq_select_kernel(SparqSelect call, SelectRows select, int stride) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(uint4, bin_words, kSelectBins / 4);
  TRIPHASE_SHARED(uint4, query_words, kMaxScoreDim * G / 4);
  TRIPHASE_SHARED(uint4, channel_words, kMaxScoreDim / 4);
  TRIPHASE_SHARED(float, factor, kMostGroup);
  TRIPHASE_SHARED(float, reduce, kReduceWords);
  TRIPHASE_SHARED(unsigned, scan, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 5);  // WeightShared's found and listed; how many are wanted
  const ScoreKeys& keys = call.keys;
  const int thread = static_cast<int>(threadIdx.x);
  const auto row_index = static_cast<std::int64_t>(blockIdx.x);
  const auto kv_heads = static_cast<unsigned>(keys.kv_heads);
  const int sequence = static_cast<int>(blockIdx.x / kv_heads);
  const int head = static_cast<int>(blockIdx.x % kv_heads);
  const SelectRange range = select_range(select);
  const int group =
      G <= 2 ? G : static_cast<int>(static_cast<unsigned>(call.queries.heads) / kv_heads);
  const int rank = static_cast<int>(call.rank);
  const float* q = call.queries.q + sequence * call.queries.q_stride + head * group * keys.head_dim;
  auto* bins = reinterpret_cast<unsigned*>(bin_words);
  auto* q_chosen = reinterpret_cast<float*>(query_words);
  auto* channel = reinterpret_cast<int*>(channel_words);
  auto* logits = reinterpret_cast<float*>(bytes);
  float* scores = logits + (group > 1 ? group * stride : 0);

  float* sums = reinterpret_cast<float*>(bins) + kMaxScoreDim;
  auto* counts = reinterpret_cast<int*>(sums + 2 * kMostGroup * kChannelWarps);
  choose_row_channels(q, group, static_cast<int>(keys.head_dim), rank, call.scale, channel, factor,
                      {reinterpret_cast<float*>(bins), sums, counts});
  take_queries<T, G>(q, static_cast<int>(keys.head_dim), group, rank, factor, channel, q_chosen);
  for (int i = thread; i < kSelectBins / 4; i += kRowThreads<G>)
    bin_words[i] = make_uint4(0, 0, 0, 0);
  if (thread == 0) {
    found[3] = 0;
    found[4] = static_cast<unsigned>(selected_entries(select, static_cast<int>(call.k)));
  }
  __syncthreads();

  const SparqRow<T, G> row{keys,    sequence, head,   range.length, rank,
                           channel, q_chosen, logits, group,        stride};
  float top[G];
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) top[g] = -INFINITY;
  score_row(row, top);
  float total[G];
  weigh_tokens(row, top, range, total, scores, bins, reduce);

  // The channels are done with: the tokens of one bin take their place.
  const WeightShared shared{bins,     reinterpret_cast<unsigned*>(q_chosen), channel, scan, found,
                            found + 3};
  SelectedIndices output{select.indices + row_index * select.capacity, select.capacity};
  const unsigned count =
      select_weights<kRowThreads<G>>(scores, range, static_cast<int>(found[4]), shared, output);
  if (thread == 0) select.counts[row_index] = static_cast<std::int32_t>(count);
  __syncthreads();  // everybody's indices are there
  float share[G] = {};
  for (int i = thread; i < static_cast<int>(count); i += kRowThreads<G>) {
    const int token = output.to[i];
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      if (g < group) share[g] += row.logits[g * row.stride + token];
    }
  }
  add_heads(share, reduce);
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) {
    if (g < group && thread == 0) {
      call.alpha[row_index * group + g] = total[g] > 0.0F ? share[g] / total[g] : 0.0F;
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
  const LaunchCheck check("sparq_select", shape);
  const bool quantized = keys.dtype == DType::kInt8;
  check(quantized || keys.dtype == DType::kF16 || keys.dtype == DType::kBF16,
        "the keys must be F16, BF16 or U8");
  check(keys.kv_heads > 0 && call.queries.heads > 0 && call.queries.heads % keys.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  const std::int64_t group = call.queries.heads / keys.kv_heads;
  check(group <= kMostGroup, "1 to 8 query heads for each KV head");
  check(keys.head_dim > 0 && keys.head_dim <= kMaxScoreDim, "head_dim must be 1 to 256");
  check(call.rank >= 1 && call.rank <= keys.head_dim, "rank must be 1 to head_dim");
  check(gpu_takes_pages(keys.page_tokens), "page_tokens must be 32, 64 or 128");
  check(keys.max_pages * keys.page_tokens >= keys.max_length, "the page table is too short");
  check(keys.max_length <= kSelectWeightTokens, "max_length must be at most 65536");
  check(call.k >= 0 && call.local >= 0 &&
            call.capacity >= smaller(keys.max_length, larger(call.k, call.local)),
        "capacity below k and the forced tokens");
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
      TRIPHASE_LAUNCH((sparq_select_kernel<T, G>), static_cast<unsigned>(rows), kRowThreads<G>,
                      shared, stream, bounded, select, static_cast<int>(stride));
    });
  });
  check_launched("sparq_select", shape);
}

}  // namespace triphase::cuda
