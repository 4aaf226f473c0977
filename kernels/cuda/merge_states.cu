#include <cmath>

#include "kernels/cuda/attention_sink.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/merge_states.h"

namespace triphase::cuda {
namespace {

constexpr float kLn2 = 0.69314718055994530942F;
constexpr float kLog2E = 1.44269504088896340736F;
constexpr int kNear = 2;        // states that are read at once, whatever they hold
constexpr int kMergeWarps = 4;  // of a block

struct MergeShape {
  int queries, heads, kv_heads, head_dim, group;  // queries: of all sequences' heads
  const float* states;
  const float* max_sum;
  const RowParts* row_parts;
  int partial_base;  // number of the first partial result, or -1
  const float* sinks;
  const float* alpha;
  const ValueMean* means;
  std::int64_t layer;
  Matrix out;
  float* lse;
};

// States of one query head: state i at first + i * group, `count` of them.
struct StateRun {
  const float* states;
  const float* max_sum;
  std::int64_t first;
  int group;
  int count;
};

// The plan's states.
__device__ inline StateRun plan_run(const MergeShape& shape, int row, int head) {
  const RowParts parts = shape.row_parts[row];
  const std::int64_t first = static_cast<std::int64_t>(parts.first + row) * shape.group + head;
  return {shape.states, shape.max_sum, first, shape.group, parts.count};
}

// That of the partial block.
__device__ inline StateRun partial_run(const MergeShape& shape, int row, int head) {
  const std::int64_t at = static_cast<std::int64_t>(shape.partial_base + row) * shape.group;
  return {shape.states, shape.max_sum, at + head, shape.group, shape.partial_base >= 0 ? 1 : 0};
}

// (max, sum) of a run's state; behind the last one an empty state's.
__device__ __forceinline__ float2 max_sum_of(const StateRun& run, int i) {
  if (i >= run.count) return {0.0F, 0.0F};
  const uint2 words =
      load8(run.max_sum + 2 * (run.first + static_cast<std::int64_t>(i) * run.group));
  return {bits_float(words.x), bits_float(words.y)};
}

// A lane's channels: four side by side, and four more kWarpChannels further on.
constexpr int kWarpChannels = 4 * kWarpSize;
template <int kSteps>
struct LaneChannels {
  float value[kSteps][4];
};

// Those of a run's state; behind the last one, and behind the last channel, 0.
template <int kSteps>
__device__ __forceinline__ LaneChannels<kSteps> channels_of(const StateRun& run, int i,
                                                            int head_dim) {
  LaneChannels<kSteps> channels{};
  TRIPHASE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const int channel = step * kWarpChannels + 4 * lane_id();
    if (i >= run.count || channel >= head_dim) continue;
    const std::int64_t state = run.first + static_cast<std::int64_t>(i) * run.group;
    const uint4 words = load16(run.states + state * head_dim + channel);
    channels.value[step][0] = bits_float(words.x);
    channels.value[step][1] = bits_float(words.y);
    channels.value[step][2] = bits_float(words.z);
    channels.value[step][3] = bits_float(words.w);
  }
  return channels;
}

// What a head's list holds of its softmax, and what takes the rest: a lane's channels of the mean
// of V. Without shares all of it and nothing.
template <int kSteps>
struct Rest {
  float own = 1.0F;
  LaneChannels<kSteps> mean;
};
template <int kSteps>
__device__ __forceinline__ Rest<kSteps> rest_of(const MergeShape& shape, int query, int sequence,
                                                int kv_head) {
  Rest<kSteps> rest{};
  if (shape.alpha == nullptr) return rest;
  rest.own = shape.alpha[query];
  if (shape.means == nullptr) return rest;
  const ValueMean mean = shape.means[sequence];
  const float* sums =
      in_layer(mean.sums, mean.layer_bytes, shape.layer) + std::int64_t{kv_head} * shape.head_dim;
  const float share = div_rn(1.0F, static_cast<float>(mean.tokens));
  TRIPHASE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const int channel = step * kWarpChannels + 4 * lane_id();
    if (channel >= shape.head_dim) continue;
    const uint4 words = load16(sums + channel);
    rest.mean.value[step][0] = mul_rn(bits_float(words.x), share);
    rest.mean.value[step][1] = mul_rn(bits_float(words.y), share);
    rest.mean.value[step][2] = mul_rn(bits_float(words.z), share);
    rest.mean.value[step][3] = mul_rn(bits_float(words.w), share);
  }
  return rest;
}

// Stores four neighbouring elements of out, from `at` on, rounded to its type (nearest even).
__device__ __forceinline__ void store_four(const Matrix& out, std::int64_t at,
                                           const float (&value)[4]) {
  if (out.dtype == DType::kF32) {
    store16(static_cast<float*>(out.data) + at,
            make_uint4(float_bits(value[0]), float_bits(value[1]), float_bits(value[2]),
                       float_bits(value[3])));
  } else if (out.dtype == DType::kF16) {
    store8(static_cast<Half*>(out.data) + at,
           make_uint2(pack2<Half>(value[0], value[1]), pack2<Half>(value[2], value[3])));
  } else {
    store8(static_cast<BFloat16*>(out.data) + at,
           make_uint2(pack2<BFloat16>(value[0], value[1]), pack2<BFloat16>(value[2], value[3])));
  }
}

// A warp per query head of a sequence. kSteps: kWarpChannels channels each. kTogether: states
// behind the first ones that are read at once.
template <int kSteps, int kTogether>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize, kTogether == 1 ? 8 : 4)
    merge_states_kernel(const MergeShape shape) {
  const int query =
      static_cast<int>(blockIdx.x) * kMergeWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (query >= shape.queries) return;
  const int sequence = query / shape.heads;
  const int query_head = query % shape.heads;
  const int row = sequence * shape.kv_heads + query_head / shape.group;
  const int head = query_head % shape.group;

  // The first states, nearly always all of them, are on their way before anything is known of them.
  const StateRun plan = plan_run(shape, row, head);
  float2 near[kNear];
  LaneChannels<kSteps> near_value[kNear];
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) {
    near[i] = max_sum_of(plan, i);
    near_value[i] = channels_of<kSteps>(plan, i, shape.head_dim);
  }
  // Early, beside the first states, unless these need the registers.
  const auto read_rest = [&] {
    return rest_of<kSteps>(shape, query, sequence, query_head / shape.group);
  };
  Rest<kSteps> rest;
  constexpr bool kRestFirst = kSteps == 1 && kTogether == 1;
  if constexpr (kRestFirst) rest = read_rest();
  float maximum = -INFINITY;
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) {
    // A state without tokens may hold anything but a sum.
    if (near[i].y != 0.0F) maximum = larger(maximum, near[i].x);
  }
  const auto all_others = [&](const auto& visit) {
    visit(plan, kNear);
    visit(partial_run(shape, row, head), 0);
  };
  all_others([&](const StateRun& run, int begin) {
    if (begin >= run.count) return;
    float most = -INFINITY;
    for (int i = begin + lane_id(); i < run.count; i += kWarpSize) {
      const float2 state = max_sum_of(run, i);
      if (state.y != 0.0F) most = larger(most, state.x);
    }
    maximum = larger(maximum, warp_max(most));
  });
  const float finite = maximum == -INFINITY ? 0.0F : maximum;
  float sum = 0.0F;
  LaneChannels<kSteps> output{};
  const auto add = [&](const float2& state, const LaneChannels<kSteps>& channels) {
    if (state.y == 0.0F) return;
    const float weight = exp2_fast(state.x - finite);
    sum = fma_rn(weight, state.y, sum);
    TRIPHASE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        output.value[step][i] = fma_rn(weight, channels.value[step][i], output.value[step][i]);
      }
    }
  };
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) add(near[i], near_value[i]);
  all_others([&](const StateRun& run, int begin) {
    // Several loads under way at once: a long context of one request has a hundred states.
    TRIPHASE_NO_UNROLL
    for (int first = begin; first < run.count; first += kTogether) {
      float2 state[kTogether];
      LaneChannels<kSteps> channels[kTogether];
      TRIPHASE_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        state[i] = max_sum_of(run, first + i);
        channels[i] = channels_of<kSteps>(run, first + i, shape.head_dim);
      }
      TRIPHASE_UNROLL
      for (int i = 0; i < kTogether; ++i) add(state[i], channels[i]);
    }
  });

  if constexpr (!kRestFirst) rest = read_rest();
  sum = with_sink(shape.sinks, query_head, finite, sum);
  const float scale = sum == 0.0F ? 0.0F : 1.0F / sum;
  const std::int64_t first =
      sequence * shape.out.row_stride + static_cast<std::int64_t>(query_head) * shape.head_dim;
  TRIPHASE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const int channel = step * kWarpChannels + 4 * lane_id();
    if (channel >= shape.head_dim) continue;
    float value[4];
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      value[i] = output.value[step][i] * scale;
      if (shape.alpha != nullptr) value[i] = mul_rn(rest.own, value[i]);
      if (shape.means != nullptr) {
        value[i] = add_rn(value[i], mul_rn(sub_rn(1.0F, rest.own), rest.mean.value[step][i]));
      }
    }
    store_four(shape.out, first + channel, value);
  }
  if (shape.lse != nullptr && lane_id() == 0) {
    shape.lse[query] = sum == 0.0F ? -INFINITY : (maximum + log2_fast(sum)) * kLn2;
  }
}

constexpr int kWeightThreads = 256;
constexpr int kMostSlices = kWeightThreads / kWarpSize;

struct WeightsShape {
  int heads_of_list;
  int slices;  // of the heads, a power of two: threads that share a token
  const float* logits;
  const float* lse;
  const std::int32_t* list_counts;
  int capacity;
  float* weights;
  std::int64_t weights_stride;
};

// Block (tokens, list). A slice's threads have tokens side by side, and every slices-th head.
__global__ void __launch_bounds__(kWeightThreads) token_weights_kernel(const WeightsShape shape) {
  TRIPHASE_SHARED(float, sums, kWeightThreads);
  const int list = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int tokens = kWeightThreads / shape.slices;
  const int first = static_cast<int>(blockIdx.x) * tokens;
  const int count = shape.list_counts[list];
  if (first >= count) return;
  const int token = first + thread % tokens;
  const int slice = thread / tokens;
  float sum = 0.0F;
  if (token < count) {
    // A list's query heads follow each other.
    const std::int64_t first_head = static_cast<std::int64_t>(list) * shape.heads_of_list;
    const float* lse = shape.lse + first_head;
    const float* logits = shape.logits + first_head * shape.capacity + token;
    // Many heads' loads are under way at once.
    TRIPHASE_UNROLL_BY(8)
    for (int i = slice; i < shape.heads_of_list; i += shape.slices) {
      sum += exp2_fast((logits[static_cast<std::int64_t>(i) * shape.capacity] - lse[i]) * kLog2E);
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (slice > 0 || token >= count) return;
  for (int other = 1; other < shape.slices; ++other) sum += sums[other * tokens + thread];
  shape.weights[list * shape.weights_stride + token] = sum;
}

}  // namespace

void merge_states(const MergeStatesArgs& args, StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"sequences", args.sequences},
                       {"heads", args.heads},
                       {"kv_heads", args.kv_heads},
                       {"head_dim", args.head_dim},
                       {"parts", args.plan.part_count}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "merge_states", what, shape_of_call);
  };
  check(args.sequences > 0 && args.sequences <= 65535, "sequences must be 1 to 65535");
  check(args.kv_heads > 0 && args.heads > 0 && args.heads % args.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(args.head_dim > 0 && args.head_dim <= 2 * kWarpChannels && args.head_dim % 4 == 0,
        "head_dim must be 4 to 256, a multiple of 4");
  check(args.out.data != nullptr && args.out.row_stride >= std::int64_t{args.heads} * args.head_dim,
        "out is null or its stride too small");
  check(args.out.row_stride % 4 == 0, "out's rows must be whole pieces of four");
  check(is_float(args.out.dtype), "out must be F32, F16 or BF16");
  check(args.means == nullptr || args.alpha != nullptr, "means without shares");
  check(args.states != nullptr && args.max_sum != nullptr && args.plan.row_parts != nullptr &&
            args.plan.rows == args.sequences * args.kv_heads,
        "no states, or the plan is for other rows");

  MergeShape shape{};
  shape.queries = args.sequences * args.heads;
  shape.heads = args.heads;
  shape.kv_heads = args.kv_heads;
  shape.head_dim = args.head_dim;
  shape.group = args.heads / args.kv_heads;
  shape.states = args.states;
  shape.max_sum = args.max_sum;
  shape.row_parts = args.plan.row_parts;
  shape.partial_base = args.partial_results ? args.plan.part_count + args.plan.rows : -1;
  shape.sinks = args.sinks;
  shape.alpha = args.alpha;
  shape.means = args.means;
  shape.layer = args.layer;
  shape.out = args.out;
  shape.lse = args.lse;
  const int blocks = ceil_div(shape.queries, kMergeWarps);
  constexpr int kThreads = kMergeWarps * kWarpSize;
  // Few long rows: their contexts are in many parts.
  const bool many = args.plan.part_count > 4 * args.plan.rows;
  const auto launch = [&]<int kSteps>() {
    if (many) {
      TRIPHASE_LAUNCH((merge_states_kernel<kSteps, 8 / kSteps>), blocks, kThreads, 0, stream,
                      shape);
    } else {
      TRIPHASE_LAUNCH((merge_states_kernel<kSteps, 1>), blocks, kThreads, 0, stream, shape);
    }
  };
  if (args.head_dim <= kWarpChannels) {
    launch.template operator()<1>();
  } else {
    launch.template operator()<2>();
  }
  check_launched("merge_states", shape_of_call);
}

void token_weights(const TokenWeightsArgs& args, StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"sequences", args.sequences},
                       {"heads", args.heads},
                       {"kv_heads", args.kv_heads},
                       {"list_rows", args.list_rows},
                       {"capacity", args.capacity}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "token_weights", what, shape_of_call);
  };
  check(args.sequences > 0 && args.kv_heads > 0 && args.heads > 0 &&
            args.heads % args.kv_heads == 0 && args.capacity > 0,
        "sizes must be positive and heads a multiple of kv_heads");
  check(args.list_rows == args.sequences || args.list_rows == args.sequences * args.kv_heads,
        "list_rows must be sequences or rows");
  check(args.list_rows <= 65535, "too many lists");
  check(args.weights_stride > 0, "no room for the weights");
  check(args.logits != nullptr && args.lse != nullptr && args.list_counts != nullptr &&
            args.weights != nullptr,
        "null pointer");
  WeightsShape shape{};
  const bool shared = args.list_rows == args.sequences;
  shape.heads_of_list = shared ? args.heads : args.heads / args.kv_heads;
  shape.slices = 1;
  while (shape.slices < kMostSlices && 2 * shape.slices <= shape.heads_of_list) shape.slices *= 2;
  shape.logits = args.logits;
  shape.lse = args.lse;
  shape.list_counts = args.list_counts;
  shape.capacity = args.capacity;
  shape.weights = args.weights;
  shape.weights_stride = args.weights_stride;
  const int tokens = kWeightThreads / shape.slices;
  const dim3 grid(static_cast<unsigned>(ceil_div(args.capacity, tokens)),
                  static_cast<unsigned>(args.list_rows));
  TRIPHASE_LAUNCH((token_weights_kernel), grid, kWeightThreads, 0, stream, shape);
  check_launched("token_weights", shape_of_call);
}

}  // namespace triphase::cuda
