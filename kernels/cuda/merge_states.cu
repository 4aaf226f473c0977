#include <cmath>

#include "kernels/cuda/attention_sink.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/merge_states.h"

namespace triphase::cuda {
namespace {

constexpr int kNear = 2;        // states that are read at once, whatever they hold
constexpr int kMergeWarps = 4;  // of a block
constexpr int kLongWarps = 4;   // that share a long row's query head

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
  float* softmax;
};

// Which query head of a call.
struct QueryPlace {
  int query, sequence, head, row, head_of_row;
  __device__ QueryPlace(const MergeShape& shape, int of_call)
      : query(of_call),
        sequence(query / shape.heads),
        head(query % shape.heads),
        row(sequence * shape.kv_heads + head / shape.group),
        head_of_row(head % shape.group) {}
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
__device__ inline StateRun plan_run(const MergeShape& shape, const QueryPlace& place) {
  const RowParts parts = shape.row_parts[place.row];
  const std::int64_t first =
      static_cast<std::int64_t>(parts.first + place.row) * shape.group + place.head_of_row;
  return {shape.states, shape.max_sum, first, shape.group, parts.count};
}

// That of the partial block.
__device__ inline StateRun partial_run(const MergeShape& shape, const QueryPlace& place) {
  const std::int64_t at =
      static_cast<std::int64_t>(shape.partial_base + place.row) * shape.group + place.head_of_row;
  return {shape.states, shape.max_sum, at, shape.group, shape.partial_base >= 0 ? 1 : 0};
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
__device__ __forceinline__ Rest<kSteps> rest_of(const MergeShape& shape, const QueryPlace& place) {
  Rest<kSteps> rest{};
  if (shape.alpha == nullptr) return rest;
  rest.own = shape.alpha[place.query];
  if (shape.means == nullptr) return rest;
  const ValueMean mean = shape.means[place.sequence];
  const float* sums = in_layer(mean.sums, mean.layer_bytes, shape.layer) +
                      std::int64_t{place.head / shape.group} * shape.head_dim;
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

// A query head's states, merged: relative to 2^base.
template <int kSteps>
struct Merged {
  float base = 0.0F;
  float sum = 0.0F;
  LaneChannels<kSteps> value;

  __device__ __forceinline__ void add(const float2& state, const LaneChannels<kSteps>& channels) {
    if (state.y == 0.0F) return;
    const float weight = exp2_fast(state.x - base);
    sum = fma_rn(weight, state.y, sum);
    TRIPHASE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        value.value[step][i] = fma_rn(weight, channels.value[step][i], value.value[step][i]);
      }
    }
  }
};

// The largest of the maxima of a run's states from the begin-th on. A state without tokens may hold
// anything but a sum.
__device__ __forceinline__ float largest_of(const StateRun& run, int begin) {
  if (begin >= run.count) return -INFINITY;
  float most = -INFINITY;
  for (int i = begin + lane_id(); i < run.count; i += kWarpSize) {
    const float2 state = max_sum_of(run, i);
    if (state.y != 0.0F) most = larger(most, state.x);
  }
  return warp_max(most);
}

// What all states of a query head come to, and what its list does not hold.
template <int kSteps>
__device__ __forceinline__ void store_merged(const MergeShape& shape, const QueryPlace& place,
                                             const Merged<kSteps>& merged,
                                             const Rest<kSteps>& rest) {
  const float sum = with_sink(shape.sinks, place.head, merged.base, merged.sum);
  const float scale = sum == 0.0F ? 0.0F : 1.0F / sum;
  const std::int64_t first = place.sequence * shape.out.row_stride +
                             static_cast<std::int64_t>(place.head) * shape.head_dim;
  TRIPHASE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const int channel = step * kWarpChannels + 4 * lane_id();
    if (channel >= shape.head_dim) continue;
    float value[4];
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      value[i] = merged.value.value[step][i] * scale;
      if (shape.alpha != nullptr) value[i] = mul_rn(rest.own, value[i]);
      if (shape.means != nullptr) {
        value[i] = add_rn(value[i], mul_rn(sub_rn(1.0F, rest.own), rest.mean.value[step][i]));
      }
    }
    store_four(shape.out, first + channel, value);
  }
  if (shape.softmax != nullptr && lane_id() == 0) {
    store8(shape.softmax + 2 * place.query, make_uint2(float_bits(merged.base), float_bits(scale)));
  }
}

// A warp per query head of a sequence. kSteps: kWarpChannels channels each.
template <int kSteps>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize, 8)
    merge_states_kernel(const MergeShape shape) {
  const int query =
      static_cast<int>(blockIdx.x) * kMergeWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (query >= shape.queries) return;
  const QueryPlace place(shape, query);

  // The first states, nearly always all of them, are on their way before anything is known of them.
  const StateRun plan = plan_run(shape, place);
  float2 near[kNear];
  LaneChannels<kSteps> near_value[kNear];
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) {
    near[i] = max_sum_of(plan, i);
    near_value[i] = channels_of<kSteps>(plan, i, shape.head_dim);
  }
  // Early, beside the first states, unless these need the registers.
  Rest<kSteps> rest;
  if constexpr (kSteps == 1) rest = rest_of<kSteps>(shape, place);
  float maximum = -INFINITY;
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) {
    if (near[i].y != 0.0F) maximum = larger(maximum, near[i].x);
  }
  const StateRun partial = partial_run(shape, place);
  maximum = larger(maximum, larger(largest_of(plan, kNear), largest_of(partial, 0)));
  Merged<kSteps> merged{};
  merged.base = maximum == -INFINITY ? 0.0F : maximum;
  TRIPHASE_UNROLL
  for (int i = 0; i < kNear; ++i) merged.add(near[i], near_value[i]);
  const auto add_from = [&](const StateRun& run, int begin) {
    TRIPHASE_NO_UNROLL
    for (int i = begin; i < run.count; ++i) {
      merged.add(max_sum_of(run, i), channels_of<kSteps>(run, i, shape.head_dim));
    }
  };
  add_from(plan, kNear);
  add_from(partial, 0);
  if constexpr (kSteps > 1) rest = rest_of<kSteps>(shape, place);
  store_merged(shape, place, merged, rest);
}

// A block per query head of a sequence: a long context of one request has a hundred states. Each
// warp merges as many of them, one behind another; then the first one merges what they made.
template <int kSteps>
__global__ void __launch_bounds__(kLongWarps* kWarpSize, 5)
    merge_long_rows_kernel(const MergeShape shape) {
  constexpr int kTogether = 8 / kSteps;  // states that are read at once
  TRIPHASE_SHARED(uint4, values, kLongWarps * kSteps * kWarpSize);
  TRIPHASE_SHARED(float, bases, kLongWarps);
  TRIPHASE_SHARED(float, sums, kLongWarps);
  const QueryPlace place(shape, static_cast<int>(blockIdx.x));
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  StateRun own = plan_run(shape, place);
  const int begin = own.count * warp / kLongWarps;
  own.count = own.count * (warp + 1) / kLongWarps - begin;
  own.first += static_cast<std::int64_t>(begin) * own.group;
  StateRun partial = partial_run(shape, place);
  if (warp != kLongWarps - 1) partial.count = 0;

  // The first states are on their way while the largest maximum is looked for.
  float2 state[kTogether];
  LaneChannels<kSteps> channels[kTogether];
  const auto read_from = [&](int first) {
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      state[i] = max_sum_of(own, first + i);
      channels[i] = channels_of<kSteps>(own, first + i, shape.head_dim);
    }
  };
  read_from(0);
  Merged<kSteps> merged{};
  merged.base = larger(largest_of(own, 0), largest_of(partial, 0));
  TRIPHASE_NO_UNROLL
  for (int first = 0; first < own.count; first += kTogether) {
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) merged.add(state[i], channels[i]);
    read_from(first + kTogether);
  }
  if (partial.count > 0) {
    merged.add(max_sum_of(partial, 0), channels_of<kSteps>(partial, 0, shape.head_dim));
  }
  TRIPHASE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const float(&value)[4] = merged.value.value[step];
    values[(warp * kSteps + step) * kWarpSize + lane_id()] = make_uint4(
        float_bits(value[0]), float_bits(value[1]), float_bits(value[2]), float_bits(value[3]));
  }
  if (lane_id() == 0) {
    bases[warp] = merged.base;
    sums[warp] = merged.sum;
  }
  __syncthreads();
  if (warp > 0) return;

  const Rest<kSteps> rest = rest_of<kSteps>(shape, place);
  float most = bases[0];
  TRIPHASE_UNROLL
  for (int other = 1; other < kLongWarps; ++other) most = larger(most, bases[other]);
  Merged<kSteps> all{};
  all.base = most == -INFINITY ? 0.0F : most;
  TRIPHASE_NO_UNROLL
  for (int other = 0; other < kLongWarps; ++other) {
    LaneChannels<kSteps> part;
    TRIPHASE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const uint4 words = values[(other * kSteps + step) * kWarpSize + lane_id()];
      part.value[step][0] = bits_float(words.x);
      part.value[step][1] = bits_float(words.y);
      part.value[step][2] = bits_float(words.z);
      part.value[step][3] = bits_float(words.w);
    }
    all.add({bases[other], sums[other]}, part);
  }
  store_merged(shape, place, all, rest);
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
  const LaunchCheck check("merge_states", shape_of_call);
  check(args.sequences > 0 && args.sequences <= kMostGridY, "sequences must be 1 to 65535");
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
  shape.softmax = args.softmax;
  const auto launch = [&]<int kSteps>() {
    if (args.long_rows) {
      TRIPHASE_LAUNCH((merge_long_rows_kernel<kSteps>), shape.queries, kLongWarps * kWarpSize, 0,
                      stream, shape);
    } else {
      TRIPHASE_LAUNCH((merge_states_kernel<kSteps>), ceil_div(shape.queries, kMergeWarps),
                      kMergeWarps * kWarpSize, 0, stream, shape);
    }
  };
  if (args.head_dim <= kWarpChannels) {
    launch.template operator()<1>();
  } else {
    launch.template operator()<2>();
  }
  check_launched("merge_states", shape_of_call);
}

}  // namespace triphase::cuda
