#pragma once

// KV caches for the tests of INT8 and selected tokens: a sequence whose blocks all exist both
// unquantized (partial pages) and, once full, as codes, in shuffled pages; everything else is NaN.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/sizing/attention_workspace.h"
#include "kernels/sizing/ops_scratch.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {

struct CacheShape {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t dim = 20;
  std::int64_t page_tokens = 32;
  DType dtype = DType::kF16;  // of the cache, or of the partial pages when `int8`
  bool int8 = true;
};

inline std::string describe(const CacheShape& s) {
  return "heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " dim " +
         std::to_string(s.dim) + " page " + std::to_string(s.page_tokens) + " " +
         std::string(dtype_name(s.dtype)) + (s.int8 ? " int8" : "");
}

// Chosen lists of one row that own their arrays, list behind list; view() lays them out as a
// Selection does, in memory that stays until the next view().
struct OwnedLists {
  OwnedLists() = default;
  OwnedLists(std::vector<std::int32_t> list_begins, std::vector<std::int32_t> list_tokens,
             std::vector<std::int32_t> list_slots)
      : begins(std::move(list_begins)),
        tokens(std::move(list_tokens)),
        slots(std::move(list_slots)) {}

  std::vector<std::int32_t> begins{0};
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> slots;

  [[nodiscard]] const Selection* view() {
    const auto lists = static_cast<std::int64_t>(begins.size()) - 1;
    std::int64_t capacity = 0;
    counts_.clear();
    for (std::size_t list = 0; list + 1 < begins.size(); ++list) {
      counts_.push_back(begins[list + 1] - begins[list]);
      capacity = std::max<std::int64_t>(capacity, counts_.back());
    }
    // Beyond a list's end lies what nobody may read.
    tokens_.assign(static_cast<std::size_t>(lists * capacity), -1);
    slots_ = tokens_;
    for (std::size_t list = 0; list + 1 < begins.size(); ++list) {
      const auto to = static_cast<std::ptrdiff_t>(list) * capacity;
      std::copy(tokens.begin() + begins[list], tokens.begin() + begins[list + 1],
                tokens_.begin() + to);
      std::copy(slots.begin() + begins[list], slots.begin() + begins[list + 1],
                slots_.begin() + to);
    }
    selection_ = {.rows = 1,
                  .lists = lists,
                  .capacity = capacity,
                  .tokens = tokens_.data(),
                  .counts = counts_.data(),
                  .slots = slots_.data()};
    return &selection_;
  }
  // view(), with room for the scores of so many query heads.
  [[nodiscard]] const Selection* view_for_scores(std::int64_t heads) {
    static_cast<void>(view());
    scores_.assign(static_cast<std::size_t>(heads * selection_.capacity), -1.0F);
    softmax_.assign(static_cast<std::size_t>(2 * heads), -1.0F);
    selection_.scores = {scores_.data(), softmax_.data()};
    return &selection_;
  }
  // What attention has left: the weights of a head's tokens. Behind them it writes nothing.
  [[nodiscard]] std::vector<double> weights(std::int64_t head) const {
    const auto heads = static_cast<std::int64_t>(softmax_.size()) / 2;
    const std::int64_t count = counts_[static_cast<std::size_t>(head * selection_.lists / heads)];
    const float* scores = scores_.data() + head * selection_.capacity;
    const double largest = softmax_[static_cast<std::size_t>(2 * head)];
    const double share = softmax_[static_cast<std::size_t>(2 * head + 1)];
    std::vector<double> weights;
    for (std::int64_t i = 0; i < count; ++i) {
      weights.push_back(std::exp2(static_cast<double>(scores[i]) - largest) * share);
    }
    EXPECT_TRUE(std::all_of(scores + count, scores + selection_.capacity,
                            [](float score) { return score == -1.0F; }));
    return weights;
  }

 private:
  std::vector<std::int32_t> tokens_, slots_, counts_;
  Selection selection_;
  std::vector<float> scores_;
  std::vector<float> softmax_;
};

// Room for what attention leaves of lists, in `scores`.
inline void ask_for_scores(Selection& lists, std::int64_t heads, std::vector<float>& scores) {
  scores.assign(static_cast<std::size_t>(attended_floats(lists.rows, heads, lists.capacity)),
                std::numeric_limits<float>::quiet_NaN());
  lists.scores = {scores.data() + attended_floats(lists.rows, heads, 0), scores.data()};
}

// One sequence of `tokens` tokens. Full blocks are quantized by `ops`.
class SequenceCache {
 public:
  SequenceCache(const CacheShape& shape, std::int64_t tokens, Ops& ops, Stream& stream,
                std::mt19937& random)
      : shape_(shape),
        tokens_(tokens),
        v_(tokens, shape.kv_heads * shape.dim, 2),
        blocks_((tokens + shape.page_tokens - 1) / shape.page_tokens),
        partial_k_(shape.dtype, (blocks_ + 2) * page_elements()),
        partial_v_(shape.dtype, (blocks_ + 2) * page_elements()),
        codes_k_(static_cast<std::size_t>((blocks_ + 2) * page_elements()), 255),
        codes_v_(codes_k_),
        scales_(static_cast<std::size_t>((blocks_ + 2) * 2 * shape.kv_heads * shape.dim),
                KvScale{kNoKvScale}) {
    partial_pages_ = shuffled(random);
    pages_ = shuffled(random);
    scale_pages_ = shuffled(random);
    const TestMatrix k = TestMatrix(tokens, shape.kv_heads * shape.dim, 1).randomize(random);
    v_.randomize(random);
    for (std::int64_t t = 0; t < tokens; ++t) v_.set(t, 0, v_.at(t, 0) + 5.5F);  // far from zero
    std::vector<PageId> pages;
    std::vector<std::int32_t> offsets;
    for (std::int64_t t = 0; t < tokens; ++t) {
      pages.push_back(partial_pages_[static_cast<std::size_t>(t / shape.page_tokens)]);
      offsets.push_back(static_cast<std::int32_t>(t % shape.page_tokens));
    }
    ops.kv_append(k.view(), v_.view(), {pages, offsets}, view(), stream);
    if (!shape.int8) return;
    std::vector<FullBlock> full_blocks;
    for (std::size_t b = 0; b < static_cast<std::size_t>(tokens / shape.page_tokens); ++b) {
      full_blocks.push_back({partial_pages_[b], pages_[b], scale_pages_[b]});
    }
    ops.quantize_blocks({full_blocks}, view(), stream);
  }

  [[nodiscard]] KvLayerView view() {
    if (!shape_.int8) {
      return {partial_k_.data(),  partial_v_.data(), shape_.dtype,
              shape_.page_tokens, shape_.kv_heads,   shape_.dim};
    }
    return {codes_k_.data(),   codes_v_.data(), DType::kInt8,   shape_.page_tokens,
            shape_.kv_heads,   shape_.dim,      scales_.data(), partial_k_.data(),
            partial_v_.data(), shape_.dtype};
  }

  // Queries that end at `context`, as one segment (INT8: all in one block).
  [[nodiscard]] AttentionSegment segment(std::int64_t query_begin, std::int64_t query_count,
                                         std::int64_t context, std::int64_t window = 0) const {
    const auto own = static_cast<std::size_t>((context - 1) / shape_.page_tokens);
    AttentionSegment result{query_begin, query_count, context, {}, window};
    if (shape_.int8) {
      result.pages = std::span(pages_).first(own);
      result.scale_pages = std::span(scale_pages_).first(own);
      result.partial_page = partial_pages_[own];
    } else {
      result.pages = std::span(partial_pages_).first(own + 1);
    }
    return result;
  }

  // The whole context as segments whose chunks have at most `chunk` queries, row = position.
  [[nodiscard]] std::vector<AttentionSegment> prefill(std::int64_t chunk,
                                                      std::int64_t window = 0) const {
    std::vector<AttentionSegment> segments;
    for (std::int64_t at = 0; at < tokens_;) {
      const std::int64_t block_end = (at / shape_.page_tokens + 1) * shape_.page_tokens;
      const std::int64_t end = std::min({at + chunk, block_end, tokens_});
      segments.push_back(segment(at, end - at, end, window));
      at = end;
    }
    return segments;
  }

  // Adds a list of the tokens that `keep` names, for a query at context - 1.
  template <class Keep>
  void add_list(OwnedLists& to, std::int64_t context, const Keep& keep) const {
    const std::int64_t own = (context - 1) / shape_.page_tokens;
    for (std::int64_t t = 0; t < context; ++t) {
      if (!keep(t)) continue;
      const auto block = static_cast<std::size_t>(t / shape_.page_tokens);
      const bool partial = !shape_.int8 || t / shape_.page_tokens == own;
      const PageId page = partial ? partial_pages_[block] : pages_[block];
      to.tokens.push_back(static_cast<std::int32_t>(t));
      to.slots.push_back(
          static_cast<std::int32_t>(page.value * shape_.page_tokens + t % shape_.page_tokens));
    }
    to.begins.push_back(static_cast<std::int32_t>(to.tokens.size()));
  }

  // Moves the sequence's data to other pages, with new shuffles.
  void move_pages(std::mt19937& random) {
    const auto permute = [&](std::vector<PageId>& pages, const auto& move) {
      const std::vector<PageId> next = shuffled(random);
      move(pages, next);
      pages = next;
    };
    const auto move_bytes = [](void* data, std::size_t page_bytes) {
      return [=](const std::vector<PageId>& from, const std::vector<PageId>& to) {
        const auto* bytes = static_cast<const std::byte*>(data);
        const std::vector<std::byte> old(bytes, bytes + (from.size() + 2) * page_bytes);
        for (std::size_t i = 0; i < from.size(); ++i) {
          std::memcpy(static_cast<std::byte*>(data) + to[i].index() * page_bytes,
                      old.data() + from[i].index() * page_bytes, page_bytes);
        }
      };
    };
    const auto elements = static_cast<std::size_t>(page_elements());
    permute(partial_pages_, [&](const auto& from, const auto& to) {
      move_bytes(partial_k_.data(), elements * dtype_bytes(shape_.dtype))(from, to);
      move_bytes(partial_v_.data(), elements * dtype_bytes(shape_.dtype))(from, to);
    });
    permute(pages_, [&](const auto& from, const auto& to) {
      move_bytes(codes_k_.data(), elements)(from, to);
      move_bytes(codes_v_.data(), elements)(from, to);
    });
    permute(scale_pages_, [&](const auto& from, const auto& to) {
      move_bytes(scales_.data(),
                 2 * sizeof(KvScale) * static_cast<std::size_t>(shape_.kv_heads * shape_.dim))(from,
                                                                                               to);
    });
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  // V as it was appended, rows [first, first + count).
  [[nodiscard]] ConstMatrix appended_v(std::int64_t first, std::int64_t count) const {
    return v_.view(first, count);
  }
  [[nodiscard]] std::vector<KvScale>& scales() { return scales_; }

 private:
  [[nodiscard]] std::int64_t page_elements() const {
    return shape_.kv_heads * shape_.page_tokens * shape_.dim;
  }
  [[nodiscard]] std::vector<PageId> shuffled(std::mt19937& random) const {
    std::vector<PageId> all;
    for (std::int64_t page = 0; page < blocks_ + 2; ++page) all.emplace_back(page);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(static_cast<std::size_t>(blocks_));
    return all;
  }

  CacheShape shape_;
  std::int64_t tokens_;
  TestMatrix v_;
  std::int64_t blocks_;
  Elements partial_k_;
  Elements partial_v_;
  std::vector<std::uint8_t> codes_k_;
  std::vector<std::uint8_t> codes_v_;
  std::vector<KvScale> scales_;
  std::vector<PageId> partial_pages_;
  std::vector<PageId> pages_;
  std::vector<PageId> scale_pages_;
};

// Tests that run attention over SequenceCaches, with exactly the workspace that sizing asks for.
class KvCacheTest : public KernelTest {
 protected:
  [[nodiscard]] TestMatrix run(const KvLayerView& cache, const ConstMatrix& q,
                               std::span<const AttentionSegment> segments,
                               ScoreScale scale = 0.25F) {
    return run_on(*ops_, 2, cache, q, segments, scale);
  }
  [[nodiscard]] TestMatrix run_on(Ops& ops, int threads, const KvLayerView& cache,
                                  const ConstMatrix& q, std::span<const AttentionSegment> segments,
                                  ScoreScale scale = 0.25F) {
    const std::int64_t heads = q.cols / cache.head_dim;
    const std::size_t bytes = attention_workspace_bytes({.heads = heads,
                                                         .kv_heads = cache.kv_heads,
                                                         .head_dim = cache.head_dim,
                                                         .max_query_rows = q.rows,
                                                         .max_context = longest(segments),
                                                         .threads = threads});
    const auto release = [&](std::byte* data) { device_.release(data, bytes); };
    const std::unique_ptr<std::byte, decltype(release)> workspace(
        static_cast<std::byte*>(device_.allocate(bytes)), release);
    std::fill_n(reinterpret_cast<float*>(workspace.get()), bytes / sizeof(float),
                std::numeric_limits<float>::quiet_NaN());
    TestMatrix out(q.rows, q.cols, 2);
    ops.attention(q, heads, cache, segments, scale, out.view(), {workspace.get(), bytes}, *stream_);
    return out;
  }
  // The segments, attended: their log-sums lie in log_sums_ until the next call.
  [[nodiscard]] std::vector<AttentionSegment> attended(const KvLayerView& cache,
                                                       const ConstMatrix& q,
                                                       std::vector<AttentionSegment> segments,
                                                       ScoreScale scale = 0.25F) {
    log_sums_.assign(static_cast<std::size_t>(q.rows * (q.cols / cache.head_dim)),
                     std::numeric_limits<float>::quiet_NaN());
    for (AttentionSegment& segment : segments) segment.log_sums = log_sums_.data();
    static_cast<void>(run(cache, q, segments, scale));
    return segments;
  }

  void expect_matches(const TestMatrix& out, const ConstMatrix& q, const KvLayerView& cache,
                      std::span<const AttentionSegment> segments, ScoreScale scale = 0.25F) {
    const std::int64_t dim = cache.head_dim;
    const std::int64_t heads = q.cols / dim;
    const bool chosen = std::ranges::any_of(
        segments, [](const auto& segment) { return segment.chosen != nullptr; });
    const auto tolerance =
        cache.quantized() || chosen ? tolerance::int8_attention : tolerance::attention;
    const reference::AttentionValues expected =
        reference::attention(q, heads, cache, segments, scale);
    EXPECT_TRUE(out.padding_is_poisoned());
    for (std::int64_t row = 0; row < out.rows(); ++row) {
      for (std::int64_t col = 0; col < out.cols(); ++col) {
        const auto at = static_cast<std::size_t>(row * out.cols() + col);
        const double score =
            expected.score_magnitude[static_cast<std::size_t>(row * heads + col / dim)];
        ASSERT_LE(std::abs(out.at(row, col) - expected.value[at]),
                  tolerance(dim, longest(segments), score) * expected.magnitude[at] + 0x1p-100)
            << "heads " << heads << "/" << cache.kv_heads << " dim " << dim << " page "
            << cache.page_tokens << " " << dtype_name(cache.dtype) << ": row " << row << " column "
            << col << " is " << out.at(row, col) << ", expected " << expected.value[at];
      }
    }
  }

  std::vector<float> log_sums_;

 private:
  static std::int64_t longest(std::span<const AttentionSegment> segments) {
    std::int64_t longest = 0;
    for (const AttentionSegment& segment : segments) {
      longest = std::max(longest, segment.context_tokens);
    }
    return longest;
  }
};

}  // namespace triphase
