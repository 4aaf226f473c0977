#include "kernels/cuda/cuda_sparse_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_rows.h"
#include "kernels/cuda/select_rows.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

std::int64_t blocks_of(const KvLayerView& cache, const AttentionSegment& keys) {
  return (keys.context_tokens + cache.page_tokens - 1) / cache.page_tokens;
}

bool has_channels(const KvLayerView& cache, PageId page) {
  return cache.kt != nullptr && page.value < cache.kt_pages && cache.kt_ready[page.index()] != 0;
}

std::string shape_of(const KvLayerView& cache, const AttentionSegment& keys) {
  return shape_text({{"context_tokens", keys.context_tokens},
                     {"pages", static_cast<std::int64_t>(keys.pages.size())},
                     {"page_tokens", cache.page_tokens},
                     {"kv_heads", cache.kv_heads},
                     {"head_dim", cache.head_dim}}) +
         ", cache " + std::string(dtype_name(cache.dtype));
}

void check_keys(const KvLayerView& cache, const AttentionSegment& keys, const char* operation) {
  const auto check = [&](bool condition, const char* what) {
    require(condition, operation, what, [&] { return shape_of(cache, keys); });
  };
  check(cache.k != nullptr && cache.page_tokens > 0 && cache.kv_heads > 0 && cache.head_dim > 0 &&
            (cache.kt == nullptr || cache.kt_ready != nullptr),
        "a cache without keys or sizes");
  check(keys.context_tokens > 0, "no context");
  const std::int64_t blocks = blocks_of(cache, keys);
  const std::int64_t closed = cache.quantized() ? blocks - 1 : blocks;
  check(static_cast<std::int64_t>(keys.pages.size()) >= closed, "a segment's pages");
  check(!cache.quantized() || (static_cast<std::int64_t>(keys.scale_pages.size()) >= closed &&
                               keys.open_page.valid()),
        "a segment's scale pages or open page");
}

class CudaSparseOpsOnStreams final : public CudaSparseOps {
 public:
  CudaSparseOpsOnStreams(Device& device, Device& host, CudaSparseSettings settings)
      : device_(&device),
        settings_(std::move(settings)),
        arguments_(device, host, static_cast<std::size_t>(kCudaSparseRingBytes)),
        scratch_(device) {}

  void reserve(const OpsShape& shape, Stream& stream) override {
    const CudaScratchBytes bytes = cuda_scratch_bytes(settings_.machine, shape);
    (void)scratch_.at_least(static_cast<std::size_t>(bytes.selection), stream);
  }

  void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
                  const AttentionSegment& keys, float scale, float* probabilities,
                  std::int64_t stride, Workspace, Stream& stream) override {
    const Call call = prepare(q, row, heads, cache, keys, stream, "score_keys");
    require(probabilities != nullptr && stride >= keys.context_tokens, "score_keys",
            "no room for the probabilities", [&] { return shape_of(cache, keys); });
    const ScoreLogits logits = logits_of(call);
    const StreamHandle handle = settings_.stream_handle(stream);
    score_exact(call.keys, call.queries, scale, logits, handle);
    auto* scores = call.at<float>(call.scratch.scores_at);
    group_scores(logits, call.keys.lengths, cache.kv_heads, cache.kv_heads, heads / cache.kv_heads,
                 keys.context_tokens, GroupReduce::kNone, scores,
                 call.at<float>(call.scratch.totals_at), handle);
    const auto context = static_cast<std::size_t>(keys.context_tokens);
    for (std::int64_t head = 0; head < heads; ++head) {
      device_->copy(probabilities + head * stride, scores + head * keys.context_tokens,
                    context * sizeof(float), stream);
    }
    stream.synchronize();
  }

  void transpose_keys(const KvLayerView& cache, const AttentionSegment& keys,
                      Stream& stream) override {
    check_keys(cache, keys, "transpose_keys");
    if (cache.kt == nullptr) return;
    // INT8: the query's own block is read unquantized, and its page may not be written yet.
    const std::int64_t full =
        cache.quantized() ? blocks_of(cache, keys) - 1 : keys.context_tokens / cache.page_tokens;
    std::vector<std::int32_t> missing;
    for (const PageId page : keys.pages.first(static_cast<std::size_t>(full))) {
      if (page.value < cache.kt_pages && !has_channels(cache, page)) {
        missing.push_back(page.value);
        // Whatever reads them comes later on the same stream.
        cache.kt_ready[page.index()] = 1;
      }
    }
    if (missing.empty()) return;
    KvCache view;
    view.k = cache.k;
    view.dtype = cache.dtype;
    view.page_tokens = static_cast<int>(cache.page_tokens);
    view.kv_heads = static_cast<int>(cache.kv_heads);
    view.head_dim = static_cast<int>(cache.head_dim);
    arguments_.reserve(missing.size() * sizeof(std::int32_t), 1, stream);
    kv_write_channels(arguments_.send(std::span<const std::int32_t>(missing), stream),
                      static_cast<int>(missing.size()), view, cache.kt,
                      settings_.stream_handle(stream));
  }

  void choose_by_channels(ConstMatrix q, std::int64_t row, std::int64_t heads,
                          const KvLayerView& cache, const AttentionSegment& keys, float scale,
                          const ChannelChoice& choice, std::int32_t* tokens, float* alpha,
                          Workspace, Stream& stream) override {
    const Call call = prepare(q, row, heads, cache, keys, stream, "choose_by_channels");
    require(
        tokens != nullptr && choice.rank > 0 && choice.rank <= cache.head_dim &&
            choice.tokens > 0 && choice.tokens <= keys.context_tokens && choice.recent >= 0 &&
            choice.recent <= choice.tokens,
        "choose_by_channels", "a choice beyond the context or the channels", [&] {
          return shape_of(cache, keys) + ", " +
                 shape_text(
                     {{"rank", choice.rank}, {"tokens", choice.tokens}, {"recent", choice.recent}});
        });
    require(choice.temperature == ChannelTemperature::kCoverage, "choose_by_channels",
            "a temperature other than eq. 9's, which only the CPU has",
            [&] { return shape_of(cache, keys); });
    if (fits_one_block(call, choice)) {
      choose_fused(call, scale, choice, settings_.stream_handle(stream));
    } else {
      choose_in_steps(call, scale, choice, settings_.stream_handle(stream));
    }
    device_->copy(tokens, call.at<std::int32_t>(call.scratch.indices_at),
                  static_cast<std::size_t>(cache.kv_heads * choice.tokens) * sizeof(std::int32_t),
                  stream);
    if (alpha != nullptr) {
      device_->copy(alpha, call.at<float>(call.scratch.alpha_at),
                    static_cast<std::size_t>(heads) * sizeof(float), stream);
    }
    stream.synchronize();
  }

  void sum_columns(ConstMatrix, std::int64_t, const KvLayerView& cache,
                   const AttentionSegment& segment, std::int64_t, float, float*, std::int64_t,
                   Workspace, Stream&) override {
    refuse("sum_columns", shape_of(cache, segment));
  }
  void bound_pages(const KvLayerView& cache, const AttentionSegment& keys, std::int64_t,
                   const PageBounds&, Stream&) override {
    refuse("bound_pages", shape_of(cache, keys));
  }
  void score_pages(ConstMatrix q, std::int64_t, std::int64_t, std::int64_t, const PageBounds&,
                   std::int64_t pages, float*, std::int64_t, Stream&) override {
    refuse("score_pages", shape_text({{"q", q}}) + ", " + shape_text({{"pages", pages}}));
  }
  void score_centroids(ConstMatrix q, std::int64_t, std::int64_t, std::int64_t,
                       const triphase::Centroids& centroids, float, float*, Stream&) override {
    refuse("score_centroids",
           shape_text({{"q", q}}) + ", " + shape_text({{"count", centroids.count}}));
  }

 private:
  struct Call {
    ScoreKeys keys;
    ScoreQueries queries;
    CudaSparseScratch scratch;
    std::byte* base = nullptr;

    template <class T>
    [[nodiscard]] T* at(std::int64_t offset) const {
      return reinterpret_cast<T*>(base + offset);
    }
  };

  [[noreturn]] static void refuse(const char* operation, const std::string& shape) {
    reject_launch(operation, "its data lies with the method on the host; CPU only", shape);
  }

  Call prepare(const ConstMatrix& q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
               const AttentionSegment& keys, Stream& stream, const char* operation) {
    check_keys(cache, keys, operation);
    const auto shape = [&] {
      return shape_of(cache, keys) + ", " + shape_text({{"q", q}}) + ", " +
             shape_text({{"row", row}, {"heads", heads}});
    };
    require(q.data != nullptr && q.dtype == DType::kF32 && row >= 0 && row < q.rows && heads > 0 &&
                heads % cache.kv_heads == 0 && q.cols == heads * cache.head_dim,
            operation, "q must be F32 rows of whole groups of heads", shape);
    Call call;
    call.scratch = cuda_sparse_scratch({.heads = heads,
                                        .kv_heads = cache.kv_heads,
                                        .head_dim = cache.head_dim,
                                        .max_query_rows = 1,
                                        .max_context = keys.context_tokens});
    call.base = scratch_.at_least(static_cast<std::size_t>(call.scratch.bytes), stream);

    // [length, open page], pages, scale pages: one array on its way.
    const auto blocks = static_cast<std::size_t>(blocks_of(cache, keys));
    tables_.assign(2 + 2 * blocks, 0);
    tables_[0] = static_cast<std::int32_t>(keys.context_tokens);
    tables_[1] = keys.open_page.value;
    const std::size_t pages = std::min(blocks, keys.pages.size());
    bool all_transposed = true;
    for (std::size_t i = 0; i < pages; ++i) {
      tables_[2 + i] = keys.pages[i].value;
      if (i + 1 < blocks && !has_channels(cache, keys.pages[i])) all_transposed = false;
    }
    if (cache.quantized()) {
      for (std::size_t i = 0; i < std::min(blocks, keys.scale_pages.size()); ++i) {
        tables_[2 + blocks + i] = keys.scale_pages[i].value;
      }
    }
    arguments_.reserve(tables_.size() * sizeof(std::int32_t), 1, stream);
    const std::int32_t* sent = arguments_.send(std::span<const std::int32_t>(tables_), stream);
    call.keys = {.keys = cache.k,
                 .channels = all_transposed ? cache.kt : nullptr,
                 .dtype = cache.dtype,
                 .scales = cache.scales,
                 .open_keys = cache.open_k,
                 .open_pages = sent + 1,
                 .open_dtype = cache.open_dtype,
                 .pages = sent + 2,
                 .scale_pages = sent + 2 + blocks,
                 .max_pages = static_cast<std::int64_t>(blocks),
                 .lengths = sent,
                 .sequences = 1,
                 .max_length = keys.context_tokens,
                 .page_tokens = cache.page_tokens,
                 .kv_heads = cache.kv_heads,
                 .head_dim = cache.head_dim};
    call.queries = {static_cast<const float*>(q.data) + row * q.row_stride, q.row_stride, heads};
    return call;
  }

  [[nodiscard]] bool fits_one_block(const Call& call, const ChannelChoice& choice) const {
    const ScoreKeys& keys = call.keys;
    const std::int64_t group = call.queries.heads / keys.kv_heads;
    const bool pages = keys.page_tokens == 32 || keys.page_tokens == 64 || keys.page_tokens == 128;
    return !choice.sum_logits && keys.dtype != DType::kF32 && pages && group <= 8 &&
           keys.max_length <= sparq_select_tokens(group, settings_.machine.shared_bytes_per_block);
  }

  static void choose_fused(const Call& call, float scale, const ChannelChoice& choice,
                           StreamHandle handle) {
    SparqSelect select;
    select.keys = call.keys;
    select.queries = call.queries;
    select.rank = choice.rank;
    select.scale = scale;
    select.k = choice.tokens;
    select.local = choice.recent;
    select.indices = call.at<std::int32_t>(call.scratch.indices_at);
    select.capacity = choice.tokens;
    select.counts = call.at<std::int32_t>(call.scratch.counts_at);
    select.alpha = call.at<float>(call.scratch.alpha_at);
    sparq_select(select, handle);
  }

  static void choose_in_steps(const Call& call, float scale, const ChannelChoice& choice,
                              StreamHandle handle) {
    const ScoreKeys& keys = call.keys;
    const CudaSparseScratch& at = call.scratch;
    const std::int64_t group = call.queries.heads / keys.kv_heads;
    auto* channels = call.at<std::int32_t>(at.channels_at);
    auto* factors = call.at<float>(at.factors_at);
    auto* scores = call.at<float>(at.scores_at);
    auto* totals = call.at<float>(at.totals_at);
    auto* indices = call.at<std::int32_t>(at.indices_at);
    auto* counts = call.at<std::int32_t>(at.counts_at);
    choose_channels(call.queries, 1, keys.kv_heads, keys.head_dim, choice.rank, scale, channels,
                    factors, handle);
    const ScoreLogits logits = logits_of(call);
    score_sparq(keys, call.queries, channels, factors, choice.rank, logits, handle);
    group_scores(logits, keys.lengths, keys.kv_heads, keys.kv_heads, group, keys.max_length,
                 choice.sum_logits ? GroupReduce::kLogitSum : GroupReduce::kProbabilitySum, scores,
                 totals, handle);
    select_top({.scores = scores,
                .score_stride = keys.max_length,
                .lengths = keys.lengths,
                .rows = keys.kv_heads,
                .rows_per_sequence = keys.kv_heads,
                .max_length = keys.max_length,
                .local = choice.recent,
                .indices = indices,
                .capacity = choice.tokens,
                .counts = counts},
               choice.tokens, handle);
    selected_share(logits, totals, indices, choice.tokens, counts, keys.kv_heads, group,
                   call.at<float>(at.alpha_at), handle);
  }

  static ScoreLogits logits_of(const Call& call) {
    return {.logits = call.at<float>(call.scratch.logits_at),
            .partials = call.at<float>(call.scratch.partials_at),
            .length_stride = call.keys.max_length};
  }

  Device* device_;
  CudaSparseSettings settings_;
  ArgumentRing arguments_;
  DeviceScratch scratch_;
  std::vector<std::int32_t> tables_;
};

}  // namespace

std::unique_ptr<CudaSparseOps> make_cuda_sparse_ops(Device& device, Device& host,
                                                    CudaSparseSettings settings) {
  return std::make_unique<CudaSparseOpsOnStreams>(device, host, std::move(settings));
}

}  // namespace triphase::cuda
