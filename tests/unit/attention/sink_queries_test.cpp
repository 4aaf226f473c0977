#include "models/sink_queries.h"

#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/attention_workspace.h"
#include "models/attention_runner.h"
#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

constexpr std::int64_t kPrompt = 40;
constexpr std::int64_t kTokens = 75;
constexpr float kScale = 0.25F;

class SinkQueriesTest : public KvCacheTest {};

// x rotated by so many positions, in float64, pairs (c, c + rotary_dim / 2).
std::vector<double> rotated(std::vector<double> x, const RopeTable& rope, double positions) {
  const std::vector<double> frequencies = rope.frequencies(0);
  const std::size_t half = frequencies.size();
  for (std::size_t c = 0; c < half; ++c) {
    const double angle = positions * frequencies[c];
    const double a = x[c];
    const double b = x[c + half];
    x[c] = a * std::cos(angle) - b * std::sin(angle);
    x[c + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return x;
}

// StreamingLLM as its code does it: the kept keys, before rotation, get positions 0, 1, 2 ... in
// the cache, and the query the last of them.
std::vector<double> stream_attention(const KvLayerView& cache, const AttentionSegment& keys,
                                     const RopeTable& rope, const std::vector<double>& raw_query,
                                     std::int64_t kv_head, std::int64_t sinks, std::int64_t k) {
  std::vector<std::int64_t> kept;
  for (std::int64_t t = 0; t < keys.context_tokens; ++t) {
    if (keys.context_tokens <= k || t < sinks || t >= keys.context_tokens - (k - sinks)) {
      kept.push_back(t);
    }
  }
  const auto last = static_cast<double>(kept.size() - 1);
  const std::vector<double> query = rotated(raw_query, rope, last);
  std::vector<double> weights;
  double total = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::vector<double> stored = reference::cached_row(cache, keys, kv_head, kept[i], false);
    const std::vector<double> raw = rotated(stored, rope, -static_cast<double>(kept[i]));
    const std::vector<double> key = rotated(raw, rope, static_cast<double>(i));
    double logit = 0;
    for (std::size_t c = 0; c < key.size(); ++c) logit += query[c] * key[c];
    total += weights.emplace_back(std::exp(kScale * logit));
  }
  std::vector<double> out(raw_query.size(), 0.0);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::vector<double> value = reference::cached_row(cache, keys, kv_head, kept[i], true);
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += weights[i] / total * value[c];
  }
  return out;
}

TEST_P(SinkQueriesTest, AttendAsWithPositionsInsideTheCache) {
  AttentionOptions options;
  options.kind = AttentionKind::kLmInfinite;
  for (const char* setting :
       {"lm-infinite.sinks=3", "lm-infinite.k=50", "lm-infinite.rope_mode=in_cache"}) {
    set_attention_option(options, setting);
  }
  for (const CacheShape& shape :
       {CacheShape{.heads = 6, .kv_heads = 2, .dim = 20, .dtype = DType::kF32, .int8 = false},
        CacheShape{.heads = 2, .kv_heads = 2, .dim = 16, .page_tokens = 32, .int8 = true}}) {
    ModelConfig config;
    config.layers = 1;
    config.heads = shape.heads;
    config.kv_heads = shape.kv_heads;
    config.head_dim = shape.dim;
    // Not all channels are rotated.
    config.rope = RopeConfig{.rotary_dim = shape.dim - 4};
    const RopeTable rope(*config.rope, 100);
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const auto sparse = make_cpu_sparse_ops(pool_, device_);
    MemoryPool pool(device_, MemoryTier::kDevice, std::uint64_t{1} << 30);
    const AttentionShape largest{.heads = shape.heads,
                                 .kv_heads = shape.kv_heads,
                                 .head_dim = shape.dim,
                                 .max_query_rows = 2,
                                 .max_context = kTokens,
                                 .threads = 2};
    const Buffer workspace =
        pool.allocate(attention_workspace_bytes(largest), MemoryTag::kWorkspace);
    SinkQueries queries(config, 2, *ops_, rope, pool);
    EXPECT_EQ(pool.use(MemoryTag::kActivations).now, SinkQueries::scratch_bytes(config, 2));
    AttentionRunner runner(options, MethodShape{1, shape.heads, shape.kv_heads, shape.dim}, *sparse,
                           largest, pool);
    // Two lines of other lengths in one step, which share the keys.
    const std::vector<SequenceId> sequences = {SequenceId(1), SequenceId(2)};
    for (const SequenceId sequence : sequences) runner.begin(sequence, kPrompt);
    const TestMatrix raw = TestMatrix(2, shape.heads * shape.dim).randomize(random_, 1.5F);
    for (std::int64_t at = kPrompt; at + 3 < kTokens; ++at) {
      const std::vector<std::int64_t> positions = {at, at + 3};
      std::vector<BatchSegment> batch;
      std::vector<AttentionSegment> segments;
      TestMatrix q(2, shape.heads * shape.dim);
      for (std::int64_t i = 0; i < 2 * shape.heads * shape.dim; ++i) {
        const std::int64_t width = shape.heads * shape.dim;
        q.set(i / width, i % width, raw.at(i / width, i % width));
      }
      std::vector<float> angles(static_cast<std::size_t>(rope.rotary_dim()) * 2);
      for (std::int64_t row = 0; row < 2; ++row) {
        const std::int64_t position = positions[static_cast<std::size_t>(row)];
        batch.push_back({.sequence = sequences[static_cast<std::size_t>(row)],
                         .first_row = row,
                         .count = 1,
                         .first_position = position});
        segments.push_back(cache.segment(row, 1, position + 1));
        rope.fill(0, position,
                  std::span(angles).subspan(static_cast<std::size_t>(row * rope.rotary_dim()),
                                            static_cast<std::size_t>(rope.rotary_dim())));
      }
      queries.begin(batch, runner, *stream_);
      queries.take(q.view(), *stream_);
      ops_->rope(q.view(), shape.heads, shape.dim, rope.rotary_dim(),
                 {angles.data(), DType::kF32, 2, rope.rotary_dim(), rope.rotary_dim()}, *stream_);
      (void)runner.choose(LayerId(0), segments, sequences, q.view(), cache.appended_v(at, 2),
                          cache.view(), kScale, nullptr, *stream_);
      TestMatrix out(2, shape.heads * shape.dim, 1);
      const std::vector<std::span<const std::int32_t>> slots(2);
      runner.attend(LayerId(0), segments, sequences, slots, q.view(), &queries, cache.view(),
                    kScale, out.view(), *ops_, {workspace.data(), workspace.bytes()}, *stream_);
      for (std::int64_t row = 0; row < 2; ++row) {
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          std::vector<double> query;
          for (std::int64_t c = 0; c < shape.dim; ++c) {
            query.push_back(raw.at(row, head * shape.dim + c));
          }
          const std::vector<double> expected =
              stream_attention(cache.view(), segments[static_cast<std::size_t>(row)], rope, query,
                               head / (shape.heads / shape.kv_heads), 3, 50);
          for (std::int64_t c = 0; c < shape.dim; ++c) {
            const double value = expected[static_cast<std::size_t>(c)];
            ASSERT_NEAR(out.at(row, head * shape.dim + c), value, 1e-4 + 1e-4 * std::abs(value))
                << describe(shape) << " position " << positions[static_cast<std::size_t>(row)]
                << " head " << head << " channel " << c;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SinkQueriesTest, testing::Values("avx2", "scalar"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace triphase
