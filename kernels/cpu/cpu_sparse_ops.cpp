#include "kernels/cpu/cpu_sparse_ops.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/cpu_sparse_kernels.h"
#include "kernels/sizing/sparse_workspace.h"

namespace triphase {
namespace {

void check_keys(const KvLayerView& cache, const AttentionSegment& keys) {
  TRIPHASE_CHECK(
      cache.k != nullptr && cache.page_tokens > 0 && cache.kv_heads > 0 && cache.head_dim > 0 &&
          (!cache.quantized() ||
           (cache.scales != nullptr && cache.partial_k != nullptr && cache.page_tokens % 16 == 0)),
      "sparse: cache");
  const std::int64_t blocks = (keys.context_tokens + cache.page_tokens - 1) / cache.page_tokens;
  const auto pages = static_cast<std::int64_t>(keys.pages.size());
  TRIPHASE_CHECK(keys.context_tokens > 0 && keys.query_count >= 0, "sparse: context");
  if (!cache.quantized()) {
    TRIPHASE_CHECK(pages >= blocks, "sparse: a segment's pages");
    return;
  }
  TRIPHASE_CHECK(pages >= blocks - 1 &&
                     static_cast<std::int64_t>(keys.scale_pages.size()) >= blocks - 1 &&
                     keys.partial_page.valid(),
                 "sparse: a segment's pages");
}

void check_query(const ConstMatrix& q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads) {
  TRIPHASE_CHECK(q.data != nullptr && q.dtype == DType::kF32 && row >= 0 && row < q.rows &&
                     kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && q.cols % heads == 0,
                 "sparse: query");
}

class CpuSparseOps final : public SparseOps {
 public:
  CpuSparseOps(ThreadPool& pool, Device& memory) : pool_(&pool), memory_(&memory) {}

  [[nodiscard]] Device& memory() override { return *memory_; }
  [[nodiscard]] bool selects_for_several_queries() const override { return true; }
  // Lines of 64 bytes here and there arrive at less than half of the rate of half a KiB.
  [[nodiscard]] std::int64_t transposed_k_run_bytes() const override { return 512; }

  void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
                  const AttentionSegment& keys, float scale, float* probabilities,
                  std::int64_t stride, Workspace workspace, Stream&) override {
    check_keys(cache, keys);
    check_query(q, row, heads, cache.kv_heads);
    TRIPHASE_CHECK(q.cols == heads * cache.head_dim && probabilities != nullptr &&
                       stride >= keys.context_tokens,
                   "score_keys: shapes");
    const AttentionShape shape = shape_of(heads, cache, keys, workspace);
    cpu::score_keys(*pool_, q, row, heads, cache, keys, scale, probabilities, stride, shape,
                    workspace);
  }

  void transpose_keys(const KvLayerView& cache, const AttentionSegment& keys, Stream&) override {
    check_keys(cache, keys);
    if (cache.kt == nullptr) return;
    TRIPHASE_CHECK(cache.kt_ready != nullptr && cache.kt_pages >= 0 && cache.kt_run > 0,
                   "transpose_keys: cache");
    cpu::transpose_keys(*pool_, cache, keys);
  }

  void choose_by_channels(ConstMatrix q, std::int64_t row, std::int64_t heads,
                          const KvLayerView& cache, const AttentionSegment& keys, float scale,
                          const ChannelChoice& choice, std::int32_t* tokens, float* alpha,
                          Workspace workspace, Stream&) override {
    check_keys(cache, keys);
    check_query(q, row, heads, cache.kv_heads);
    TRIPHASE_CHECK(q.cols == heads * cache.head_dim && tokens != nullptr && choice.rank > 0 &&
                       choice.rank <= cache.head_dim && choice.recent >= 0 &&
                       choice.recent <= choice.tokens && choice.tokens <= keys.context_tokens &&
                       (cache.kt == nullptr || (cache.kt_ready != nullptr && cache.kt_run > 0)),
                   "choose_by_channels: shapes");
    const AttentionShape shape = shape_of(heads, cache, keys, workspace);
    cpu::choose_by_channels(*pool_, q, row, heads, cache, keys, scale, choice, tokens, alpha, shape,
                            workspace);
  }

  void accumulate_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                          const AttentionSegment& segment, std::int64_t first_query, float scale,
                          float* sums, std::int64_t stride, Workspace workspace, Stream&) override {
    check_keys(cache, segment);
    TRIPHASE_CHECK(segment.query_count <= segment.context_tokens && segment.query_begin >= 0 &&
                       segment.query_begin + segment.query_count <= q.rows && first_query >= 0 &&
                       q.cols == heads * cache.head_dim && sums != nullptr &&
                       stride >= segment.context_tokens && segment.selection.empty(),
                   "accumulate_columns: shapes");
    if (first_query >= segment.query_count) return;
    check_query(q, segment.query_begin, heads, cache.kv_heads);
    const std::int64_t first = segment.context_tokens - segment.query_count;
    TRIPHASE_CHECK(!cache.quantized() || first / cache.page_tokens ==
                                             (segment.context_tokens - 1) / cache.page_tokens,
                   "accumulate_columns: INT8 queries of more than one block in a segment");
    const AttentionShape shape = shape_of(heads, cache, segment, workspace);
    cpu::accumulate_columns(*pool_, q, heads, cache, segment, first_query, scale, sums, stride,
                            shape, workspace);
  }

  void bound_pages(const KvLayerView& cache, const AttentionSegment& keys, std::int64_t first_token,
                   const PageBounds& bounds, Stream&) override {
    check_keys(cache, keys);
    TRIPHASE_CHECK(bounds.data != nullptr && bounds.page_tokens > 0 && first_token >= 0,
                   "bound_pages: bounds");
    if (first_token >= keys.context_tokens) return;
    cpu::bound_pages(*pool_, cache, keys, first_token, bounds);
  }

  void score_pages(ConstMatrix q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                   const PageBounds& bounds, std::int64_t pages, float* scores, std::int64_t stride,
                   Stream&) override {
    check_query(q, row, heads, kv_heads);
    TRIPHASE_CHECK(pages >= 0 && stride >= pages && (pages == 0 || scores != nullptr) &&
                       (pages == 0 || bounds.data != nullptr),
                   "score_pages: shapes");
    cpu::score_pages(*pool_, q, row, heads, kv_heads, bounds, pages, scores, stride);
  }

  void score_centroids(ConstMatrix q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                       const Centroids& centroids, float scale, float* scores, Stream&) override {
    check_query(q, row, heads, kv_heads);
    TRIPHASE_CHECK(centroids.count >= 0 &&
                       (centroids.count == 0 || (centroids.means != nullptr &&
                                                 centroids.keys != nullptr && scores != nullptr)),
                   "score_centroids: shapes");
    cpu::score_centroids(*pool_, q, row, heads, kv_heads, centroids, scale, scores);
  }

  void sum_values(ConstMatrix v, float* sums, Stream&) override {
    TRIPHASE_CHECK(v.dtype == DType::kF32 && (v.rows == 0 || v.data != nullptr) && sums != nullptr,
                   "sum_values: shapes");
    for (std::int64_t row = 0; row < v.rows; ++row) {
      const float* from = static_cast<const float*>(v.data) + row * v.row_stride;
      for (std::int64_t c = 0; c < v.cols; ++c) sums[c] += from[c];
    }
  }

  void reallocate(Matrix out, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                  const float* alpha, const float* sums, std::int64_t tokens, Stream&) override {
    check_query(out, row, heads, kv_heads);
    TRIPHASE_CHECK(alpha != nullptr && (sums == nullptr || tokens > 0), "reallocate: shapes");
    const std::int64_t dim = out.cols / heads;
    const float share = sums == nullptr ? 0.0F : 1.0F / static_cast<float>(tokens);
    for (std::int64_t head = 0; head < heads; ++head) {
      float* to = static_cast<float*>(out.data) + row * out.row_stride + head * dim;
      if (sums == nullptr) {
        for (std::int64_t c = 0; c < dim; ++c) to[c] *= alpha[head];
        continue;
      }
      const float* sum = sums + head / (heads / kv_heads) * dim;
      const float rest = 1.0F - alpha[head];
      for (std::int64_t c = 0; c < dim; ++c) {
        to[c] = alpha[head] * to[c] + rest * (sum[c] * share);
      }
    }
  }

 private:
  [[nodiscard]] AttentionShape shape_of(std::int64_t heads, const KvLayerView& cache,
                                        const AttentionSegment& keys, Workspace workspace) const {
    const AttentionShape shape{.heads = heads,
                               .kv_heads = cache.kv_heads,
                               .head_dim = cache.head_dim,
                               .max_query_rows = 1,
                               .max_context = keys.context_tokens,
                               .threads = pool_->threads()};
    TRIPHASE_CHECK(reinterpret_cast<std::uintptr_t>(workspace.data) % 64 == 0 &&
                       workspace.bytes >= sparse_workspace_bytes(shape),
                   "sparse: workspace smaller than kernels/sizing says or not aligned");
    return shape;
  }

  ThreadPool* pool_;
  Device* memory_;
};

}  // namespace

std::unique_ptr<SparseOps> make_cpu_sparse_ops(ThreadPool& pool, Device& memory) {
  return std::make_unique<CpuSparseOps>(pool, memory);
}

}  // namespace triphase
