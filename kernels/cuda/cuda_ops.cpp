#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/launch.h"
#include "kernels/cuda/batch_attention.h"
#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/library_gemm.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_tasks.h"
#include "kernels/cuda/step_tables.h"
#include "kernels/expert_parts.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

// `drawn`: rows that ~i may name.
void check_indices(std::span<const std::int32_t> indices, const ConstMatrix& table,
                   const ConstMatrix& y, std::string_view operation, std::int64_t drawn = 0) {
  const auto shape = [&] {
    return shape_text({{"table", table}, {"y", y}}) + ", " +
           shape_text({{"indices", std::ssize(indices)}});
  };
  require(y.cols == table.cols && std::ssize(indices) == y.rows, operation,
          "a row of y, as wide as the table, for each index", shape);
  for (const std::int32_t index : indices) {
    require(index < 0 ? ~index < drawn : index < table.rows, operation, "an index out of range",
            [&] { return "index " + std::to_string(index) + ", " + shape(); });
  }
}

void check_segment(const AttentionSegment& segment, std::int64_t rows, const KvLayerView& cache) {
  const LaunchCheck check("attention", [&] {
    return shape_text({{"rows", rows},
                       {"query_begin", segment.query_begin},
                       {"query_count", segment.query_count},
                       {"context_tokens", segment.context_tokens},
                       {"window", segment.window},
                       {"pages", std::ssize(segment.pages)}}) +
           ", " + shape_of(cache);
  });
  check(segment.query_begin >= 0 && segment.query_count >= 0 &&
            segment.query_begin + segment.query_count <= rows &&
            segment.context_tokens >= segment.query_count && segment.window >= 0,
        "a segment's rows");
  const auto blocks = static_cast<std::size_t>(blocks_of(cache, segment));
  const std::size_t full = cache.quantized() && blocks > 0 ? blocks - 1 : blocks;
  if (segment.chosen != nullptr) {
    const Selection& chosen = *segment.chosen;
    const bool several = chosen.all_from >= 0;
    check((several ? chosen.scores.values == nullptr && chosen.alpha == nullptr
                   : segment.query_count == 1) &&
              (chosen.means == nullptr || chosen.alpha != nullptr) &&
              (chosen.scores.values == nullptr) == (chosen.scores.softmax == nullptr) &&
              (chosen.lists == 1 || chosen.lists == cache.kv_heads) && segment.chosen_row >= 0 &&
              segment.chosen_row < chosen.rows && chosen.tokens != nullptr &&
              chosen.counts != nullptr,
          "a row of chosen lists");
  }
  check(segment.pages.size() >= full, "a segment's pages");
  if (!cache.quantized() || blocks == 0) return;
  check(segment.scale_pages.size() >= full && segment.partial_page.valid(),
        "a segment's scale pages or partial page");
  check(segment.query_count == 0 || segment.context_tokens - segment.query_count >=
                                        static_cast<std::int64_t>(full) * cache.page_tokens,
        "INT8 queries of more than one block in a segment");
}

class CudaOpsOnStreams final : public CudaOps {
 public:
  CudaOpsOnStreams(Device& device, std::shared_ptr<ArgumentRing> arguments,
                   CudaOpsSettings settings)
      : device_(&device),
        name_(std::move(settings.name)),
        machine_(settings.machine),
        arguments_(std::move(arguments)),
        library_(device, std::move(settings.gemm), settings.machine.deterministic),
        scratch_(device),
        results_(device),
        step_plans_(device) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  void reserve(const OpsShape& shape, Stream& stream) override {
    const CudaScratchBytes bytes = cuda_scratch_bytes(machine_, shape);
    (void)scratch_.at_least(static_cast<std::size_t>(bytes.attention), stream);
    library_.reserve(static_cast<std::size_t>(bytes.activations), stream);
    (void)results_.at_least(static_cast<std::size_t>(bytes.results), stream);
    arguments_->at_least(static_cast<std::size_t>(bytes.arguments), stream);
    step_plans_.contexts.reserve(static_cast<std::size_t>(bytes.step_plan), stream);
    step_plans_.windows.reserve(static_cast<std::size_t>(bytes.window_plan), stream);
    step_plans_.lists.reserve(static_cast<std::size_t>(bytes.list_plan), stream);
  }

  [[nodiscard]] bool begin_step(Stream& stream) override {
    if (LaunchQueue* launches = stream.launches()) launches->begin_step();
    arguments_->begin_step(stream);
    // Other lengths may come to lie where those of the plan lay.
    step_plans_.lengths = nullptr;
    step_plans_.lists.forget();
    return true;
  }

  void end_announcing(Stream& stream) override { arguments_->end_announcing(stream); }

  [[nodiscard]] const float* send(std::span<const float> values, Stream& stream) override {
    return arguments_->send(values, stream);
  }

  [[nodiscard]] DType attended_type(const ConstMatrix& w, const KvLayerView& cache) const override {
    const bool reads_it = library_.serves() && w.cols % kGemmRowElements == 0;
    return reads_it && gather_serves(cache) ? w.dtype : DType::kF32;
  }

  void linear(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
              Stream& stream) override {
    require((x.dtype == DType::kF32 || x.dtype == w.dtype) && y.dtype == DType::kF32 &&
                x.cols == w.cols && y.rows == x.rows && y.cols == w.rows,
            "linear", "F32 y, x F32 or of w's type, y must be x times w transposed", [&] {
              return shape_text({{"x", x}, {"w", w}, {"y", y}});
            });
    if (library_.serves(x, y)) {
      const ConstMatrix rounded = x.dtype == w.dtype ? x : library_.rounded(x, w.dtype, stream);
      if (library_.run(rounded, x.cols, w, bias, accumulate, y, stream.launches())) return;
    }
    gemm_tile(x, w, bias, accumulate, y, stream.launches());
  }

  void norm_linear(ConstMatrix x, const NormStep& norm, Matrix normed, ConstMatrix w,
                   const float* bias, bool accumulate, Matrix y, Stream& stream) override {
    if (library_.serves(x, y) && w.dtype != DType::kF32) {
      const Matrix rounded = library_.rounded_rows(x, w.dtype, stream);
      if (norm.rms) {
        cuda::rms_norm(x, norm.weight, norm.weight_offset, norm.eps, rounded, stream.launches());
      } else {
        cuda::layer_norm(x, norm.weight, norm.bias, norm.eps, rounded, stream.launches());
      }
      if (library_.run(rounded, x.cols, w, bias, accumulate, y, stream.launches())) return;
    }
    Ops::norm_linear(x, norm, normed, w, bias, accumulate, y, stream);
  }

  void activation_linear(Activation activation, Matrix gate, ConstMatrix up, ConstMatrix w,
                         const float* bias, bool accumulate, Matrix y, Stream& stream) override {
    if (library_.serves(gate, y) && w.dtype != DType::kF32) {
      const Matrix rounded = library_.rounded_rows(gate, w.dtype, stream);
      cuda::activate(activation, gate, up, rounded, stream.launches());
      if (library_.run(rounded, gate.cols, w, bias, accumulate, y, stream.launches())) return;
    }
    Ops::activation_linear(activation, gate, up, w, bias, accumulate, y, stream);
  }

  void linear_by_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit,
                      Matrix y, Stream& stream) override {
    gemm_rows(x, w, bias, limit, y, stream.launches());
  }

  void embed(std::span<const TokenId> ids, ConstMatrix table, float scale, Matrix y,
             Stream& stream) override {
    check_indices(ids, table, y, "embed", drawn_rows_);
    gather(ids, table, scale, false, y, stream, drawn_);
  }

  void add_positions(std::span<const std::int32_t> positions, ConstMatrix table, Matrix y,
                     Stream& stream) override {
    check_indices(positions, table, y, "add_positions");
    gather(positions, table, 1.0F, true, y, stream);
  }

  void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix y,
                   Stream& stream) override {
    check_indices(rows, x, y, "gather_rows");
    require(x.dtype == DType::kF32, "gather_rows", "x must be F32", [&] {
      return shape_text({{"x", x}, {"y", y}});
    });
    gather(rows, x, 1.0F, false, y, stream);
  }

  void experts(ConstMatrix x, const ExpertLayer& layer, bool accumulate, Matrix y,
               Workspace workspace, Stream& stream) override {
    const ExpertParts parts = expert_parts(x, layer, y, workspace);
    const ExpertShape& shape = parts.shape;
    linear(x, layer.router, layer.router_bias, false, parts.logits, stream);
    choose_experts(parts.logits, shape.per_row, layer.shares_sum_to_one, parts.experts,
                   parts.shares, stream.launches());
    const std::int64_t tile_rows = expert_tile_rows(shape);
    auto* tiles = reinterpret_cast<RowTile*>(parts.tiles);
    const std::int64_t tile_count = expert_tiles(shape, tile_rows);
    group_rows({parts.experts, shape.rows, shape.per_row, shape.experts, parts.places, parts.rows,
                tiles, tile_count, tile_rows},
               stream.launches());
    RowGroups groups{shape.experts, tiles, tile_count,       tile_rows,
                     parts.rows,    true,  layer.activation, layer.up_bias};
    const Matrix inner{parts.inner, DType::kF32, shape.choices(), shape.ffn, shape.ffn};
    gemm_groups(x, layer.up, groups, inner, stream.launches());
    groups.x_rows = nullptr;
    groups.gated = false;
    groups.bias = layer.down_bias;
    gemm_groups(inner, layer.down, groups, parts.outputs, stream.launches());
    sum_rows(parts.outputs, parts.places, parts.shares, shape.per_row, accumulate, y,
             stream.launches());
  }

  void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                Stream& stream) override {
    cuda::rms_norm(x, weight, weight_offset, eps, y, stream.launches());
  }

  void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                    Stream& stream) override {
    cuda::add_rms_norm(x, weight, weight_offset, eps, y, stream.launches());
  }

  void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset, float eps,
                 Stream& stream) override {
    cuda::head_norm(x, heads, weight, weight_offset, eps, stream.launches());
  }

  void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                  Stream& stream) override {
    cuda::layer_norm(x, weight, bias, eps, y, stream.launches());
  }

  void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
            ConstMatrix cos_sin, Stream& stream) override {
    cuda::rope(x, heads, head_dim, rotary_dim, cos_sin, stream.launches());
  }

  void gated_activation(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
                        Stream& stream) override {
    require(!up.empty() || up.rows == 0, "gated_activation", "up is missing", [&] {
      return shape_text({{"gate", gate}, {"up", up}, {"y", y}});
    });
    cuda::activate(activation, gate, up, y, stream.launches());
  }

  void activate(Activation activation, Matrix y, Stream& stream) override {
    cuda::activate(activation, y, {}, y, stream.launches());
  }

  void soft_cap(float cap, Matrix y, Stream& stream) override {
    cuda::soft_cap(cap, y, stream.launches());
  }

  [[nodiscard]] SegmentTables make_tables(std::span<const AttentionSegment> segments,
                                          const KvSlots& slots, const StepPartialPages& partial,
                                          const KvLayerView& cache, Stream& stream) override {
    const SegmentTables tables = tables_.make(segments, slots, partial, cache, *arguments_, stream);
    step_plans_.lengths = tables.lengths;
    step_plans_.contexts.forget();
    step_plans_.windows.forget();
    return tables;
  }

  void kv_append(ConstMatrix k, ConstMatrix v, const KvSlots& slots, const KvLayerView& cache,
                 Stream& stream) override {
    append(KvAppendArgs{}, k, v, slots, cache, stream);
  }

  void rope_and_append(Matrix q, std::int64_t heads, Matrix k, ConstMatrix v,
                       std::int64_t rotary_dim, ConstMatrix cos_sin, const KvSlots& slots,
                       const KvLayerView& cache, Stream& stream) override {
    require(
        q.dtype == DType::kF32 && q.rows == k.rows && q.cols == heads * cache.head_dim &&
            cos_sin.dtype == DType::kF32 && cos_sin.rows == q.rows && cos_sin.cols == rotary_dim,
        "rope_and_append", "F32 rows of whole heads and their angles", [&] {
          return shape_text({{"q", q}, {"k", k}, {"cos_sin", cos_sin}}) + ", " + shape_of(cache);
        });
    KvAppendArgs args;
    args.rotary_dim = static_cast<int>(rotary_dim);
    args.cos_sin = static_cast<const float*>(cos_sin.data);
    args.cos_sin_stride = cos_sin.row_stride;
    args.q = static_cast<float*>(q.data);
    args.q_stride = q.row_stride;
    args.heads = static_cast<int>(heads);
    append(args, k, v, slots, cache, stream);
  }

  void quantize_blocks(const FullBlocks& full_blocks, const KvLayerView& cache,
                       Stream& stream) override {
    require(cache.quantized(), "quantize_blocks", "not an INT8 cache",
            [&] { return shape_of(cache); });
    if (full_blocks.blocks.empty()) return;
    const KvBlock* blocks = tables_.send_full_blocks(full_blocks, cache, *arguments_, stream);
    kv_quantize_pages(blocks, static_cast<int>(full_blocks.blocks.size()),
                      cache_of(cache, "quantize_blocks"), stream.launches());
  }

  void attention(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> segments, ScoreScale scale, Matrix out,
                 Workspace, Stream& stream) override {
    require(q.dtype == DType::kF32 && is_float(out.dtype) && q.rows == out.rows &&
                q.cols == out.cols && cache.kv_heads > 0 && heads > 0 &&
                heads % cache.kv_heads == 0 && q.cols == heads * cache.head_dim,
            "attention", "F32 q and an out in a float type, of whole groups of heads", [&] {
              return shape_text({{"q", q}, {"out", out}}) + ", " + shape_text({{"heads", heads}}) +
                     ", " + shape_of(cache);
            });
    for (const AttentionSegment& segment : segments) check_segment(segment, q.rows, cache);
    attend_batch({q, heads, cache, scale, out}, segments, machine_, *arguments_, scratch_,
                 step_plans_, stream);
  }

  void sample(ConstMatrix logits, std::span<const SampleRow> rows, SampleResult* results, Workspace,
              Stream& stream) override {
    require(
        logits.dtype == DType::kF32 && std::ssize(rows) == logits.rows &&
            (results != nullptr || rows.empty() || arguments_->announcing()),
        "sample", "a row of F32 logits and a result for each row", [&] {
          return shape_text({{"logits", logits}}) + ", " + shape_text({{"rows", std::ssize(rows)}});
        });
    if (rows.empty()) return;
    SampleRows call;
    call.logits = static_cast<const float*>(logits.data);
    call.stride = logits.row_stride;
    call.tasks = tasks_.send(rows, logits, *arguments_, stream);
    if (arguments_->announcing()) return;
    call.rows = logits.rows;
    const std::size_t bytes = rows.size() * sizeof(SampleResult);
    call.results = reinterpret_cast<SampleResult*>(results_.at_least(bytes, stream));
    sample_rows(call, stream.launches());
    drawn_ = call.results;
    drawn_rows_ = call.rows;
    device_->copy(results, call.results, bytes, stream);
  }

 private:
  void gather(std::span<const std::int32_t> rows, const ConstMatrix& table, float scale, bool adds,
              const Matrix& y, Stream& stream, const SampleResult* drawn = nullptr) {
    const std::int32_t* sent = arguments_->send(rows, stream);
    if (arguments_->announcing()) return;
    gather_table(sent, table, scale, adds, y, stream.launches(), drawn);
  }

  // `args` has what is rotated.
  void append(KvAppendArgs args, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
              const KvLayerView& cache, Stream& stream) {
    const auto shape = [&] {
      return shape_text({{"k", k}, {"v", v}}) + ", " +
             shape_text({{"slots", std::ssize(slots.pages)}}) + ", " + shape_of(cache);
    };
    require(k.dtype == DType::kF32 && v.dtype == DType::kF32 && k.rows == v.rows &&
                k.cols == v.cols && k.row_stride == v.row_stride &&
                k.cols == cache.kv_heads * cache.head_dim,
            "kv_append", "k and v must be F32 rows of the cache's heads", shape);
    require(std::ssize(slots.pages) == k.rows && slots.offsets.size() == slots.pages.size(),
            "kv_append", "a slot for each row", shape);
    if (k.rows == 0) return;
    const SegmentTables* tables = slots.tables;
    const bool sent = tables != nullptr && tables->slots != nullptr;
    args.k = static_cast<const float*>(k.data);
    args.v = static_cast<const float*>(v.data);
    args.stride = k.row_stride;
    args.tokens = static_cast<int>(k.rows);
    if (sent) {
      args.slots = tables->slots;
      args.cache = cache_of(from_page(cache, slots.table_layer), "kv_append");
    } else if (tables != nullptr && tables->partial_slots != nullptr) {
      args.slots = tables->partial_slots + slots.table_layer * tables->rows;
      args.cache = cache_of(cache, "kv_append");
    } else {
      args.slots = tables_.send_slots(slots, cache, *arguments_, stream);
      args.cache = cache_of(cache, "kv_append");
    }
    cuda::kv_append(args, stream.launches());
  }

  Device* device_;
  std::string name_;
  GpuMachine machine_;
  std::shared_ptr<ArgumentRing> arguments_;
  LibraryGemm library_;
  DeviceScratch scratch_;
  DeviceScratch results_;  // of sample(): of the last call these
  const SampleResult* drawn_ = nullptr;
  std::int64_t drawn_rows_ = 0;
  StepTables tables_;
  StepPlans step_plans_;
  SampleTasks tasks_;
};

}  // namespace

std::unique_ptr<CudaOps> make_cuda_ops(Device& device, std::shared_ptr<ArgumentRing> arguments,
                                       CudaOpsSettings settings) {
  return std::make_unique<CudaOpsOnStreams>(device, std::move(arguments), std::move(settings));
}

}  // namespace triphase::cuda
