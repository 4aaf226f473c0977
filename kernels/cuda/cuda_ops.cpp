#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/batch_attention.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/stage_rows.h"
#include "runtime/base/error.h"

namespace triphase::cuda {
namespace {

constexpr std::size_t kRingBytes = std::size_t{16} << 20;
constexpr std::int64_t kGemmAlignment = 8;  // elements of a row of converted activations

void check_indices(std::span<const std::int32_t> indices, const ConstMatrix& table,
                   const ConstMatrix& y, std::string_view operation) {
  TRIPHASE_CHECK(y.cols == table.cols && static_cast<std::int64_t>(indices.size()) == y.rows,
                 operation);
  for (const std::int32_t index : indices) {
    TRIPHASE_CHECK(index >= 0 && index < table.rows, operation);
  }
}

KvCache cache_of(const KvLayerView& view, std::string_view operation) {
  TRIPHASE_CHECK(view.k != nullptr && view.v != nullptr && view.page_tokens > 0 &&
                     view.kv_heads > 0 && view.head_dim > 0,
                 operation);
  return {.k = view.k,
          .v = view.v,
          .dtype = view.dtype,
          .page_tokens = static_cast<int>(view.page_tokens),
          .kv_heads = static_cast<int>(view.kv_heads),
          .head_dim = static_cast<int>(view.head_dim),
          .scales = view.scales,
          .open_k = view.open_k,
          .open_v = view.open_v,
          .open_dtype = view.open_dtype};
}

class CudaOps final : public Ops {
 public:
  CudaOps(Device& device, Device& host, CudaOpsSettings settings)
      : device_(&device),
        settings_(std::move(settings)),
        arguments_(device, host, kRingBytes),
        scratch_(device),
        converted_(device) {}

  [[nodiscard]] std::string_view name() const override { return settings_.name; }

  void linear(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
              Stream& stream) override {
    TRIPHASE_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == w.cols &&
                       y.rows == x.rows && y.cols == w.rows,
                   "linear: shapes");
    if (settings_.gemm != nullptr && y.rows > 0 && y.cols > 0 && x.cols > 0) {
      const ConstMatrix rounded = w.dtype == DType::kF32 ? x : round_to(x, w.dtype, stream);
      if (settings_.gemm->run(rounded, w, bias, accumulate, y, handle(stream))) return;
    }
    gemm_tile(x, w, bias, accumulate, y, handle(stream));
  }

  void embed(std::span<const TokenId> ids, ConstMatrix table, float scale, Matrix y,
             Stream& stream) override {
    check_indices(ids, table, y, "embed: shapes or an id out of range");
    gather_table(arguments_.send(ids, stream), table, scale, false, y, handle(stream));
  }

  void add_positions(std::span<const std::int32_t> positions, ConstMatrix table, Matrix y,
                     Stream& stream) override {
    check_indices(positions, table, y, "add_positions: shapes or a position out of range");
    gather_table(arguments_.send(positions, stream), table, 1.0F, true, y, handle(stream));
  }

  void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix y,
                   Stream& stream) override {
    check_indices(rows, x, y, "gather_rows: shapes or a row out of range");
    TRIPHASE_CHECK(x.dtype == DType::kF32, "gather_rows: type");
    gather_table(arguments_.send(rows, stream), x, 1.0F, false, y, handle(stream));
  }

  void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                Stream& stream) override {
    cuda::rms_norm(x, weight, weight_offset, eps, y, handle(stream));
  }

  void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                  Stream& stream) override {
    cuda::layer_norm(x, weight, bias, eps, y, handle(stream));
  }

  void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
            ConstMatrix cos_sin, Stream& stream) override {
    cuda::rope(x, heads, head_dim, rotary_dim, cos_sin, handle(stream));
  }

  void gated_activation(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
                        Stream& stream) override {
    TRIPHASE_CHECK(!up.empty() || up.rows == 0, "gated_activation: shapes");
    cuda::activate(activation, gate, up, y, handle(stream));
  }

  void activate(Activation activation, Matrix y, Stream& stream) override {
    cuda::activate(activation, y, {}, y, handle(stream));
  }

  void add(ConstMatrix x, Matrix y, Stream& stream) override { cuda::add(x, y, handle(stream)); }

  void kv_append(ConstMatrix k, ConstMatrix v, const KvSlots& slots, const KvLayerView& cache,
                 Stream& stream) override {
    TRIPHASE_CHECK(k.dtype == DType::kF32 && v.dtype == DType::kF32 && k.rows == v.rows &&
                       k.cols == v.cols && k.row_stride == v.row_stride &&
                       k.cols == cache.kv_heads * cache.head_dim &&
                       static_cast<std::int64_t>(slots.pages.size()) == k.rows &&
                       slots.offsets.size() == slots.pages.size(),
                   "kv_append: shapes");
    std::vector<std::int32_t> places;
    for (std::size_t row = 0; row < slots.pages.size(); ++row) {
      TRIPHASE_CHECK(slots.pages[row].valid() && slots.offsets[row] >= 0 &&
                         slots.offsets[row] < cache.page_tokens,
                     "kv_append: a slot out of range");
      places.push_back(static_cast<std::int32_t>(slots.pages[row].value * cache.page_tokens) +
                       slots.offsets[row]);
    }
    if (places.empty()) return;
    KvAppendArgs args;
    args.k = k.data;
    args.v = v.data;
    args.stride = k.row_stride;
    args.tokens = static_cast<int>(places.size());
    args.slots = send(places, stream);
    args.cache = cache_of(cache, "kv_append: cache");
    cuda::kv_append(args, handle(stream));
  }

  void kv_close(std::span<const KvClose> blocks, const KvLayerView& cache,
                Stream& stream) override {
    TRIPHASE_CHECK(cache.quantized(), "kv_close: not an INT8 cache");
    std::vector<KvBlock> places;
    for (const KvClose& block : blocks) {
      TRIPHASE_CHECK(block.open_page.valid() && block.page.valid() && block.scale_page.valid(),
                     "kv_close: a page out of range");
      places.push_back({block.open_page.value, block.page.value, block.scale_page.value});
    }
    if (places.empty()) return;
    kv_quantize_pages(send(places, stream), static_cast<int>(places.size()),
                      cache_of(cache, "kv_close: cache"), handle(stream));
  }

  void kv_pack(const KvLayerView& cache, std::span<const std::int32_t> slots, std::byte* records,
               Stream& stream) override {
    stage(StageDirection::kToHost, records, slots, cache, stream);
  }

  void kv_unpack(const std::byte* records, std::span<const std::int32_t> slots,
                 const KvLayerView& cache, Stream& stream) override {
    stage(StageDirection::kToDevice, const_cast<std::byte*>(records), slots, cache, stream);
  }

  void attention(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> segments, float scale, Matrix out, Workspace,
                 Stream& stream) override {
    TRIPHASE_CHECK(q.dtype == DType::kF32 && out.dtype == DType::kF32 && q.rows == out.rows &&
                       q.cols == out.cols && cache.kv_heads > 0 && heads > 0 &&
                       heads % cache.kv_heads == 0 && q.cols == heads * cache.head_dim,
                   "attention: shapes");
    for (const AttentionSegment& segment : segments) check_segment(segment, q.rows, cache);
    attend_batch({q, heads, cache, scale, out}, segments,
                 {settings_.multiprocessors, settings_.shared_bytes_per_multiprocessor,
                  settings_.deterministic},
                 arguments_, scratch_, *device_, stream, handle(stream));
  }

 private:
  [[nodiscard]] StreamHandle handle(Stream& stream) const {
    return settings_.stream_handle(stream);
  }

  template <class T>
  const T* send(const std::vector<T>& values, Stream& stream) {
    return arguments_.send(std::span<const T>(values), stream);
  }

  // Activations in the weights' type, rows padded to what tensor cores read at once.
  ConstMatrix round_to(ConstMatrix x, DType dtype, Stream& stream) {
    const std::int64_t stride = (x.cols + kGemmAlignment - 1) / kGemmAlignment * kGemmAlignment;
    std::byte* data =
        converted_.at_least(static_cast<std::size_t>(x.rows * stride) * dtype_bytes(dtype), stream);
    convert(x, {data, dtype, x.rows, stride, stride}, handle(stream));
    return {data, dtype, x.rows, x.cols, stride};
  }

  void stage(StageDirection direction, std::byte* records, std::span<const std::int32_t> slots,
             const KvLayerView& cache, Stream& stream) {
    for (const std::int32_t slot : slots) {
      TRIPHASE_CHECK(slot >= 0, "kv_pack, kv_unpack: a slot out of range");
    }
    if (slots.empty()) return;
    StageRowsArgs args;
    args.direction = direction;
    args.records = records;
    args.cache = cache_of(cache, "kv_pack, kv_unpack: cache");
    args.slots = arguments_.send(slots, stream);
    args.count = static_cast<int>(slots.size());
    stage_rows(args, handle(stream));
  }

  static void check_segment(const AttentionSegment& segment, std::int64_t rows,
                            const KvLayerView& cache) {
    TRIPHASE_CHECK(segment.query_begin >= 0 && segment.query_count >= 0 &&
                       segment.query_begin + segment.query_count <= rows &&
                       segment.context_tokens >= segment.query_count && segment.window >= 0,
                   "attention: a segment's rows");
    const auto blocks = static_cast<std::size_t>((segment.context_tokens + cache.page_tokens - 1) /
                                                 cache.page_tokens);
    const std::size_t closed = cache.quantized() && blocks > 0 ? blocks - 1 : blocks;
    if (!segment.selection.empty()) {
      const auto lists = static_cast<std::int64_t>(segment.selection.begins.size()) - 1;
      TRIPHASE_CHECK(segment.query_count <= 1 && (lists == 1 || lists == cache.kv_heads) &&
                         segment.selection.tokens.size() == segment.selection.slots.size(),
                     "attention: a selection's lists");
      TRIPHASE_CHECK(!cache.quantized() || segment.scale_pages.size() >= closed,
                     "attention: a segment's scale pages");
      return;
    }
    TRIPHASE_CHECK(segment.pages.size() >= closed, "attention: a segment's pages");
    if (!cache.quantized() || blocks == 0) return;
    TRIPHASE_CHECK(segment.scale_pages.size() >= closed && segment.open_page.valid(),
                   "attention: a segment's pages");
    TRIPHASE_CHECK(
        segment.query_count == 0 || segment.context_tokens - segment.query_count >=
                                        static_cast<std::int64_t>(closed) * cache.page_tokens,
        "attention: INT8 queries of more than one block in a segment");
  }

  Device* device_;
  CudaOpsSettings settings_;
  ArgumentRing arguments_;
  DeviceScratch scratch_;
  DeviceScratch converted_;
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(Device& device, Device& host, CudaOpsSettings settings) {
  return std::make_unique<CudaOps>(device, host, std::move(settings));
}

}  // namespace triphase::cuda
