#pragma once

// What tests of attention methods share: one sequence's cache, operations on it, and the same
// sequence as float64.

#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/sparse_workspace.h"
#include "models/attention/attention_method.h"
#include "tests/unit/attention/method_oracles.h"
#include "tests/unit/kernels/kv_caches.h"

namespace triphase {

inline constexpr std::int64_t kPrompt = 90;
inline constexpr std::int64_t kTokens = 150;
inline constexpr float kScale = 0.25F;

inline AttentionOptions of(std::string_view name,
                           std::initializer_list<std::string_view> settings = {}) {
  AttentionOptions options;
  options.kind = attention_from_name(name);
  for (const std::string_view setting : settings) set_attention_option(options, setting);
  return options;
}

inline std::vector<CacheShape> float_shapes() {
  return {{.heads = 2, .kv_heads = 2, .dim = 20, .dtype = DType::kF32, .int8 = false},
          {.heads = 6, .kv_heads = 2, .dim = 16, .dtype = DType::kF32, .int8 = false}};
}

inline MethodShape method_shape(const CacheShape& shape) {
  return {.layers = 3, .heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.dim};
}

class AttentionRig : public KvCacheTest {
 protected:
  void SetUp() override {
    KvCacheTest::SetUp();
    if (ops_ == nullptr) return;
    sparse_ = make_cpu_sparse_ops(pool_, device_);
    const std::size_t bytes = sparse_workspace_bytes({.heads = 8,
                                                      .kv_heads = 1,
                                                      .head_dim = 64,
                                                      .max_query_rows = 1,
                                                      .max_context = kTokens,
                                                      .threads = 2});
    workspace_ = {static_cast<std::byte*>(device_.allocate(bytes)), bytes};
  }
  void TearDown() override {
    if (workspace_.data != nullptr) device_.release(workspace_.data, workspace_.bytes);
    KvCacheTest::TearDown();
  }

  // What an early method chooses for the call's layer.
  static Selection choose_ahead(AttentionMethod& method, const AttentionMethod::Sequences& rows,
                                const LayerCall& call) {
    const Selection all = method.choose_ahead(rows, call);
    const std::int64_t count = std::ssize(rows.states);
    EXPECT_EQ(all.rows, method.layers_ahead() * count);
    return all.part(method.layers_ahead() == 1 ? 0 : call.layer * count, count);
  }

  // The sequence as float64; F32 caches only, so that all positions read alike.
  static oracle::Sequence as_float64(const CacheShape& shape, SequenceCache& cache,
                                     const TestMatrix& q) {
    oracle::Sequence s{shape.heads, shape.kv_heads, shape.dim, kPrompt, kScale, {}, {}, {}};
    const AttentionSegment all = cache.segment(0, 1, cache.tokens());
    for (std::int64_t t = 0; t < cache.tokens(); ++t) {
      auto& heads = s.q.emplace_back();
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        auto& row = heads.emplace_back();
        for (std::int64_t c = 0; c < shape.dim; ++c) row.push_back(q.at(t, h * shape.dim + c));
      }
      auto& keys = s.k.emplace_back();
      auto& values = s.v.emplace_back();
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        keys.push_back(reference::cached_row(cache.view(), all, h, t, false));
        values.push_back(reference::cached_row(cache.view(), all, h, t, true));
      }
    }
    return s;
  }

  std::unique_ptr<SparseOps> sparse_;
  Workspace workspace_;
};

}  // namespace triphase
