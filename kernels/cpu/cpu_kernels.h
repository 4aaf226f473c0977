#pragma once

// The arithmetic behind CpuOps, one source file per group. CpuOps checks the arguments and says
// what each means. Results do not depend on the number of threads.

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/input_ops.h"
#include "kernels/ops.h"
#include "kernels/sizing/attention_workspace.h"

namespace triphase::cpu {

// See Ops::linear.
void linear(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate,
            Matrix y);

// See Ops::embed, Ops::add_positions, Ops::gather_rows.
void embed(ThreadPool& pool, std::span<const TokenId> ids, ConstMatrix table, float scale,
           Matrix y);
void add_positions(ThreadPool& pool, std::span<const std::int32_t> positions, ConstMatrix table,
                   Matrix y);
void gather_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows, Matrix y);

// Of Ops::experts. The n = experts.size() / T largest logits of each row of logits [T, E] F32,
// largest first, ties to the lower column: their columns, and their shares of a softmax over all
// columns or, with `over_chosen`, over these alone. NaN is the largest.
void choose_experts(ThreadPool& pool, ConstMatrix logits, bool over_chosen,
                    std::span<std::int32_t> experts, std::span<float> shares);
// Sorts the choices [row][choice] by expert, else as they come: the place of each, the row that a
// place comes from, and each expert's first place, then the end.
void group_by_expert(std::span<const std::int32_t> experts, std::int64_t row_count,
                     std::span<std::int32_t> places, std::span<std::int32_t> rows,
                     std::span<std::int32_t> begins);
// y[t, :] = sum over i < n, ascending, of factors[t * n + i] * x[rows[t * n + i], :], plus y's old
// value when `accumulate`. n = rows.size() / T; x, y [*, C] F32.
void sum_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows,
              std::span<const float> factors, bool accumulate, Matrix y);

// See Ops::rms_norm and, with `accumulate`, Ops::add_rms_norm.
void rms_norm(ThreadPool& pool, ConstMatrix x, const float* weight, float weight_offset, float eps,
              bool accumulate, Matrix y);

// See Ops::head_norm.
void head_norm(ThreadPool& pool, Matrix x, std::int64_t heads, const float* weight,
               float weight_offset, float eps);

// See Ops::layer_norm.
void layer_norm(ThreadPool& pool, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix y);

// See Ops::rope.
void rope(ThreadPool& pool, Matrix x, std::int64_t heads, std::int64_t head_dim,
          std::int64_t rotary_dim, ConstMatrix cos_sin);

// See Ops::sample.
void sample(ThreadPool& pool, ConstMatrix logits, std::span<const SampleRow> rows,
            SampleResult* results, Workspace workspace);

// See Ops::gated_activation, Ops::activate.
void gated_activation(ThreadPool& pool, Activation activation, ConstMatrix gate, ConstMatrix up,
                      Matrix y);
void activate(ThreadPool& pool, Activation activation, Matrix y);

// See Ops::soft_cap.
void soft_cap(ThreadPool& pool, float cap, Matrix y);

// See Ops::attention. `shape` holds this call's rows and longest context; the workspace, aligned to
// 64 bytes, is laid out by it.
struct AttentionCall {
  ConstMatrix q;
  std::int64_t heads = 0;
  KvLayerView cache;
  std::span<const AttentionSegment> segments;
  ScoreScale scale;
  Matrix out;
};
void attention(ThreadPool& pool, const AttentionCall& call, const AttentionShape& shape,
               Workspace workspace);

// See Ops::kv_append.
void kv_append(ThreadPool& pool, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
               const KvLayerView& cache);

// See Ops::quantize_blocks and KvLayerView: codes and scales are bit-identical on every SIMD
// target.
void quantize_blocks(ThreadPool& pool, std::span<const FullBlock> blocks, const KvLayerView& cache);

// See InputOps::kv_requantize: the codes that quantize_blocks gave the same numbers.
void kv_requantize(ThreadPool& pool, std::span<const KvRequantize> tokens,
                   const KvLayerView& cache);

// Quantizes rows of k and v [T, kv_heads * head_dim] F32 alike, rounded to the partial type first.
// Row i goes to slots[i], by the scales of scale_pages[i].
void kv_requantize_rows(ThreadPool& pool, ConstMatrix k, ConstMatrix v,
                        std::span<const std::int32_t> slots,
                        std::span<const std::int32_t> scale_pages, const KvLayerView& cache);

}  // namespace triphase::cpu
