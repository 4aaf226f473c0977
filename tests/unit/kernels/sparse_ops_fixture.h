#pragma once

// What the tests of SparseOps start from: caches of several shapes, the least workspace, and memory
// for K^T.

#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/sparse_workspace.h"
#include "tests/unit/kernels/kv_caches.h"

namespace triphase {

class SparseOpsTest : public KvCacheTest {
 protected:
  void SetUp() override {
    KvCacheTest::SetUp();
    if (ops_ != nullptr) sparse_ = make_cpu_sparse_ops(pool_, device_);
  }
  // The least workspace for one context, full of NaN.
  Workspace workspace(const CacheShape& shape, std::int64_t context, int threads) {
    const std::size_t bytes = sparse_workspace_bytes({.heads = shape.heads,
                                                      .kv_heads = shape.kv_heads,
                                                      .head_dim = shape.dim,
                                                      .max_query_rows = 1,
                                                      .max_context = context,
                                                      .threads = threads});
    memory_.assign(bytes + 64, std::byte{0xFF});
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    return {memory_.data() + (64 - at % 64) % 64, bytes};
  }
  std::vector<float> scores(SparseOps& ops, int threads, const CacheShape& shape,
                            SequenceCache& cache, const TestMatrix& q, std::int64_t row,
                            std::int64_t context, const ScoreScale& scale = 0.25F) {
    std::vector<float> result(static_cast<std::size_t>(shape.heads * context));
    ops.score_keys(q.view(), row, shape.heads, cache.view(), cache.segment(0, 1, context), scale,
                   result.data(), context, workspace(shape, context, threads), *stream_);
    return result;
  }

  std::unique_ptr<SparseOps> sparse_;
  std::vector<std::byte> memory_;
};

inline std::vector<CacheShape> shapes() {
  return {{.dtype = DType::kF32, .int8 = false},
          {.heads = 3, .kv_heads = 3, .dim = 33, .page_tokens = 16, .int8 = false},
          {.heads = 8, .kv_heads = 1, .dim = 64, .dtype = DType::kBF16, .int8 = false},
          {.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32},
          {.heads = 10, .kv_heads = 1, .dim = 64, .page_tokens = 128}};
}

// Memory for K^T beside a cache; pages beyond `pages` have no place there.
class TransposedK {
 public:
  TransposedK(const CacheShape& shape, std::int64_t tokens, std::int64_t pages,
              std::int64_t run = 1)
      : bytes_(static_cast<std::size_t>(pages * shape.kv_heads * shape.page_tokens * shape.dim) *
                   (shape.int8 ? 1 : dtype_bytes(shape.dtype)),
               std::byte{0xFF}),
        ready_(static_cast<std::size_t>(tokens / shape.page_tokens + 3), 0),
        pages_(pages),
        run_(run) {}
  [[nodiscard]] KvLayerView beside(KvLayerView cache) {
    cache.kt = bytes_.data();
    cache.kt_ready = ready_.data();
    cache.kt_pages = pages_;
    cache.kt_run = run_;
    return cache;
  }
  [[nodiscard]] std::vector<std::uint8_t>& ready() { return ready_; }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> ready_;
  std::int64_t pages_;
  std::int64_t run_;
};

inline std::int64_t pages_of(const CacheShape& shape, std::int64_t tokens) {
  return (tokens + shape.page_tokens - 1) / shape.page_tokens + 2;
}

}  // namespace triphase
