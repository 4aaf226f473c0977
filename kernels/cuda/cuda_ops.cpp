#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/batch_attention.h"
#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/sample.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

void check_indices(std::span<const std::int32_t> indices, const ConstMatrix& table,
                   const ConstMatrix& y, std::string_view operation) {
  const auto shape = [&] {
    return shape_text({{"table", table}, {"y", y}}) + ", " +
           shape_text({{"indices", static_cast<std::int64_t>(indices.size())}});
  };
  require(y.cols == table.cols && static_cast<std::int64_t>(indices.size()) == y.rows, operation,
          "a row of y, as wide as the table, for each index", shape);
  for (const std::int32_t index : indices) {
    require(index >= 0 && index < table.rows, operation, "an index out of range",
            [&] { return "index " + std::to_string(index) + ", " + shape(); });
  }
}

class CudaOpsOnStreams final : public CudaOps {
 public:
  CudaOpsOnStreams(Device& device, std::shared_ptr<ArgumentRing> arguments,
                   CudaOpsSettings settings)
      : device_(&device),
        settings_(std::move(settings)),
        arguments_(std::move(arguments)),
        scratch_(device),
        converted_(device),
        results_(device),
        step_plan_(device) {}

  [[nodiscard]] std::string_view name() const override { return settings_.name; }

  void reserve(const OpsShape& shape, Stream& stream) override {
    const CudaScratchBytes bytes = cuda_scratch_bytes(settings_.machine, shape);
    (void)scratch_.at_least(static_cast<std::size_t>(bytes.attention), stream);
    (void)converted_.at_least(static_cast<std::size_t>(bytes.activations), stream);
    (void)results_.at_least(static_cast<std::size_t>(bytes.results), stream);
    arguments_->at_least(static_cast<std::size_t>(bytes.arguments), stream);
    (void)step_plan_.memory.at_least(static_cast<std::size_t>(bytes.step_plan), stream);
  }

  [[nodiscard]] bool begin_step(Stream& stream) override {
    arguments_->begin_step(stream);
    // Other lengths may come to lie where those of the plan lay.
    step_plan_.lengths = nullptr;
    return true;
  }

  void end_announcing(Stream& stream) override { arguments_->end_announcing(stream); }

  [[nodiscard]] const float* send(std::span<const float> values, Stream& stream) override {
    return arguments_->send(values, stream);
  }

  void linear(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
              Stream& stream) override {
    require(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == w.cols &&
                y.rows == x.rows && y.cols == w.rows,
            "linear", "F32 x and y, y must be x times w transposed", [&] {
              return shape_text({{"x", x}, {"w", w}, {"y", y}});
            });
    if (uses_library(x, y)) {
      const ConstMatrix rounded = w.dtype == DType::kF32 ? x : round_to(x, w.dtype, stream);
      if (settings_.gemm->run(rounded, w, bias, accumulate, y, handle(stream))) return;
    }
    gemm_tile(x, w, bias, accumulate, y, handle(stream));
  }

  void norm_linear(ConstMatrix x, const NormStep& norm, Matrix normed, ConstMatrix w,
                   const float* bias, bool accumulate, Matrix y, Stream& stream) override {
    if (uses_library(x, y) && w.dtype != DType::kF32) {
      const Matrix rounded = rounded_rows(x, w.dtype, stream);
      if (norm.rms) {
        cuda::rms_norm(x, norm.weight, norm.weight_offset, norm.eps, rounded, handle(stream));
      } else {
        cuda::layer_norm(x, norm.weight, norm.bias, norm.eps, rounded, handle(stream));
      }
      if (run_library(rounded, x.cols, w, bias, accumulate, y, stream)) return;
    }
    Ops::norm_linear(x, norm, normed, w, bias, accumulate, y, stream);
  }

  void activation_linear(Activation activation, Matrix gate, ConstMatrix up, ConstMatrix w,
                         const float* bias, bool accumulate, Matrix y, Stream& stream) override {
    if (uses_library(gate, y) && w.dtype != DType::kF32) {
      const Matrix rounded = rounded_rows(gate, w.dtype, stream);
      cuda::activate(activation, gate, up, rounded, handle(stream));
      if (run_library(rounded, gate.cols, w, bias, accumulate, y, stream)) return;
    }
    Ops::activation_linear(activation, gate, up, w, bias, accumulate, y, stream);
  }

  void linear_by_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit,
                      Matrix y, Stream& stream) override {
    gemm_rows(x, w, bias, limit, y, handle(stream));
  }

  void dequantize_groups(const GroupMatrix& w, Matrix y, Stream& stream) override {
    cuda::dequantize_groups(w, y, handle(stream));
  }

  void embed(std::span<const TokenId> ids, ConstMatrix table, float scale, Matrix y,
             Stream& stream) override {
    check_indices(ids, table, y, "embed");
    gather(ids, table, scale, false, y, stream);
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

  void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                Stream& stream) override {
    cuda::rms_norm(x, weight, weight_offset, eps, y, handle(stream));
  }

  void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                    Stream& stream) override {
    cuda::add_rms_norm(x, weight, weight_offset, eps, y, handle(stream));
  }

  void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset, float eps,
                 Stream& stream) override {
    cuda::head_norm(x, heads, weight, weight_offset, eps, handle(stream));
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
    require(!up.empty() || up.rows == 0, "gated_activation", "up is missing", [&] {
      return shape_text({{"gate", gate}, {"up", up}, {"y", y}});
    });
    cuda::activate(activation, gate, up, y, handle(stream));
  }

  void activate(Activation activation, Matrix y, Stream& stream) override {
    cuda::activate(activation, y, {}, y, handle(stream));
  }

  [[nodiscard]] SegmentTables make_tables(std::span<const AttentionSegment> segments,
                                          const KvSlots& slots, const StepPartialPages& partial,
                                          const KvLayerView& cache, Stream& stream) override {
    SegmentTables tables;
    for (const AttentionSegment& segment : segments) {
      const auto pages =
          static_cast<std::int64_t>(std::max(segment.pages.size(), segment.scale_pages.size()));
      tables.max_pages = std::max(tables.max_pages, pages);
    }
    const auto max_pages = static_cast<std::size_t>(tables.max_pages);
    const std::size_t entries = segments.size() * max_pages;
    const std::size_t scales_at = entries;
    const std::size_t lengths_at = scales_at + (cache.quantized() ? entries : 0);
    const std::size_t slots_at = lengths_at + segments.size();
    const std::size_t rows = cache.quantized() ? 0 : slots.pages.size();
    words_.assign(slots_at + rows, 0);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const AttentionSegment& segment = segments[i];
      const auto fill = [&](std::size_t at, std::span<const PageId> pages) {
        for (std::size_t page = 0; page < pages.size(); ++page) {
          words_[at + i * max_pages + page] = pages[page].value;
        }
      };
      fill(0, segment.pages);
      if (cache.quantized()) fill(scales_at, segment.scale_pages);
      words_[lengths_at + i] = static_cast<std::int32_t>(segment.context_tokens);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      words_[slots_at + row] = slot_of(slots, row, cache);
    }
    const std::size_t partial_at = words_.size();
    const std::size_t closes_at = add_partial_pages(slots, partial, cache);
    const std::int32_t* base = send(words_, stream);
    tables.pages = base;
    tables.scale_pages = cache.quantized() ? base + scales_at : nullptr;
    tables.lengths = base + lengths_at;
    step_plan_.lengths = tables.lengths;
    step_plan_.plan = {};
    tables.slots = rows > 0 ? base + slots_at : nullptr;
    if (partial.pages.empty()) return tables;
    tables.rows = static_cast<std::int64_t>(slots.offsets.size());
    tables.partial_pages = base + partial_at;
    tables.partial_slots = tables.partial_pages + partial.pages.size();
    tables.closes = static_cast<std::int64_t>(partial.closes.size());
    tables.closed_blocks = base + closes_at;
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

  void kv_close(const KvCloses& closes, const KvLayerView& cache, Stream& stream) override {
    require(cache.quantized(), "kv_close", "not an INT8 cache", [&] { return shape_of(cache); });
    if (closes.blocks.empty()) return;
    std::vector<KvBlock> places;
    for (const KvClose& block : closes.blocks) places.push_back(block_of(block, cache));
    const SegmentTables* tables = closes.tables;
    const KvBlock* sent = nullptr;
    if (tables != nullptr && tables->closed_blocks != nullptr) {
      sent = reinterpret_cast<const KvBlock*>(tables->closed_blocks) +
             closes.table_layer * tables->closes;
    } else {
      sent = send(places, stream);
    }
    kv_quantize_pages(sent, static_cast<int>(places.size()), cache_of(cache, "kv_close"),
                      handle(stream));
  }

  void attention(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> segments, ScoreScale scale, Matrix out,
                 Workspace, Stream& stream) override {
    TRIPHASE_CHECK(scale.cap == 0.0F, "soft caps of scores on a GPU");
    require(q.dtype == DType::kF32 && out.dtype == DType::kF32 && q.rows == out.rows &&
                q.cols == out.cols && cache.kv_heads > 0 && heads > 0 &&
                heads % cache.kv_heads == 0 && q.cols == heads * cache.head_dim,
            "attention", "F32 q and out of whole groups of heads", [&] {
              return shape_text({{"q", q}, {"out", out}}) + ", " + shape_text({{"heads", heads}}) +
                     ", " + shape_of(cache);
            });
    for (const AttentionSegment& segment : segments) check_segment(segment, q.rows, cache);
    attend_batch({q, heads, cache, scale.factor, out}, segments, settings_.machine, *arguments_,
                 scratch_, step_plan_, stream, handle(stream));
  }

  void sample(ConstMatrix logits, std::span<const SampleRow> rows, SampleResult* results, Workspace,
              Stream& stream) override {
    require(logits.dtype == DType::kF32 && static_cast<std::int64_t>(rows.size()) == logits.rows &&
                (results != nullptr || rows.empty() || arguments_->announcing()),
            "sample", "a row of F32 logits and a result for each row", [&] {
              return shape_text({{"logits", logits}}) + ", " +
                     shape_text({{"rows", static_cast<std::int64_t>(rows.size())}});
            });
    for (const SampleRow& row : rows) check_sample(row, logits);
    if (rows.empty()) return;
    collect_seen(rows);
    arguments_->reserve(seen_.size() * sizeof(seen_[0]) + rows.size() * sizeof(SampleTask), 2,
                        stream);
    const std::uint32_t* seen = send(seen_, stream);
    tasks_.clear();
    for (const SampleRow& row : rows) {
      const bool penalized = is_penalized(row);
      tasks_.push_back({.seen = penalized ? seen : nullptr,
                        .repetition_penalty = row.repetition_penalty,
                        .temperature = row.temperature,
                        .top_p = row.top_p,
                        .min_p = row.min_p,
                        .key = row.key,
                        .position = row.position,
                        .vocab = static_cast<std::int32_t>(row.vocab),
                        .top_k = static_cast<std::int32_t>(std::min(row.top_k, row.vocab)),
                        .alternatives = row.alternatives,
                        .score_token = row.score_token});
      if (penalized) seen += seen_words(row);
    }
    SampleRows call;
    call.logits = static_cast<const float*>(logits.data);
    call.stride = logits.row_stride;
    call.tasks = send(tasks_, stream);
    if (arguments_->announcing()) return;
    call.rows = logits.rows;
    const std::size_t bytes = rows.size() * sizeof(SampleResult);
    call.results = reinterpret_cast<SampleResult*>(results_.at_least(bytes, stream));
    sample_rows(call, handle(stream));
    device_->copy(results, call.results, bytes, stream);
  }

 private:
  static KvBlock block_of(const KvClose& block, const KvLayerView& cache) {
    require(block.partial_page.valid() && block.page.valid() && block.scale_page.valid(),
            "kv_close", "a page out of range", [&] { return shape_of(cache); });
    return {block.partial_page.value, block.page.value, block.scale_page.value};
  }

  // Adds to words_, for each layer: the rows' partial pages; where their tokens go there; the
  // blocks that close. Returns where the last of these begin.
  std::size_t add_partial_pages(const KvSlots& slots, const StepPartialPages& partial,
                                const KvLayerView& cache) {
    const std::size_t rows = slots.offsets.size();
    for (const PageId page : partial.pages) words_.push_back(page.value);
    for (std::size_t at = 0; at < partial.pages.size(); ++at) {
      const KvSlots own{{&partial.pages[at], 1}, {&slots.offsets[at % rows], 1}};
      words_.push_back(slot_of(own, 0, cache));
    }
    const std::size_t closes_at = words_.size();
    const std::size_t layers = partial.pages.empty() ? 0 : partial.pages.size() / rows;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (const KvClose& close : partial.closes) {
        const auto row = std::ranges::find(partial.pages.first(rows), close.partial_page) -
                         partial.pages.begin();
        const KvBlock block = block_of(close, cache);
        words_.push_back(partial.pages[layer * rows + static_cast<std::size_t>(row)].value);
        words_.push_back(block.page + static_cast<std::int32_t>(layer));
        words_.push_back(block.scale_page);
      }
    }
    return closes_at;
  }

  static std::int32_t slot_of(const KvSlots& slots, std::size_t row, const KvLayerView& cache) {
    require(slots.pages[row].valid() && slots.offsets[row] >= 0 &&
                slots.offsets[row] < cache.page_tokens,
            "kv_append", "a slot out of range", [&] { return shape_of(cache); });
    return static_cast<std::int32_t>(slots.pages[row].value * cache.page_tokens) +
           slots.offsets[row];
  }

  [[nodiscard]] StreamHandle handle(Stream& stream) const {
    return settings_.stream_handle(stream);
  }

  template <class T>
  const T* send(const std::vector<T>& values, Stream& stream) {
    return arguments_->send(std::span<const T>(values), stream);
  }

  void gather(std::span<const std::int32_t> rows, const ConstMatrix& table, float scale, bool adds,
              const Matrix& y, Stream& stream) {
    const std::int32_t* sent = arguments_->send(rows, stream);
    if (arguments_->announcing()) return;
    gather_table(sent, table, scale, adds, y, handle(stream));
  }

  [[nodiscard]] bool uses_library(const ConstMatrix& x, const ConstMatrix& y) const {
    return settings_.gemm != nullptr && !settings_.machine.deterministic && y.rows > 0 &&
           y.cols > 0 && x.cols > 0;
  }

  // Room for x in the weights' type, rows padded to what tensor cores read at once.
  Matrix rounded_rows(const ConstMatrix& x, DType dtype, Stream& stream) {
    const std::int64_t stride =
        (x.cols + kGemmRowElements - 1) / kGemmRowElements * kGemmRowElements;
    std::byte* data = converted_.at_least(
        static_cast<std::size_t>(rounded_activation_bytes(x.rows, x.cols)), stream);
    return {data, dtype, x.rows, stride, stride};
  }
  ConstMatrix round_to(ConstMatrix x, DType dtype, Stream& stream) {
    const Matrix rounded = rounded_rows(x, dtype, stream);
    convert(x, rounded, handle(stream));
    return {rounded.data, dtype, x.rows, x.cols, rounded.row_stride};
  }
  // Of rounded_rows() the first `cols` columns.
  bool run_library(Matrix rounded, std::int64_t cols, ConstMatrix w, const float* bias,
                   bool accumulate, Matrix y, Stream& stream) {
    require(y.dtype == DType::kF32 && cols == w.cols && y.rows == rounded.rows && y.cols == w.rows,
            "linear", "F32 y, which must be x times w transposed", [&] {
              return shape_text({{"w", w}, {"y", y}});
            });
    rounded.cols = cols;
    return settings_.gemm->run(rounded, w, bias, accumulate, y, handle(stream));
  }

  // `args` has what is rotated.
  void append(KvAppendArgs args, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
              const KvLayerView& cache, Stream& stream) {
    const auto shape = [&] {
      return shape_text({{"k", k}, {"v", v}}) + ", " +
             shape_text({{"slots", static_cast<std::int64_t>(slots.pages.size())}}) + ", " +
             shape_of(cache);
    };
    require(k.dtype == DType::kF32 && v.dtype == DType::kF32 && k.rows == v.rows &&
                k.cols == v.cols && k.row_stride == v.row_stride &&
                k.cols == cache.kv_heads * cache.head_dim,
            "kv_append", "k and v must be F32 rows of the cache's heads", shape);
    require(static_cast<std::int64_t>(slots.pages.size()) == k.rows &&
                slots.offsets.size() == slots.pages.size(),
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
      words_.clear();
      for (std::size_t row = 0; row < slots.pages.size(); ++row) {
        words_.push_back(slot_of(slots, row, cache));
      }
      args.slots = send(words_, stream);
      args.cache = cache_of(cache, "kv_append");
    }
    cuda::kv_append(args, handle(stream));
  }

  static void check_sample(const SampleRow& row, const ConstMatrix& logits) {
    require(row.vocab > 0 && row.vocab <= logits.cols && row.score_token < row.vocab &&
                row.alternatives <= kMaxAlternatives && row.top_p > 0.0 &&
                row.repetition_penalty > 0.0,
            "sample", "a row's parameters", [&] {
              return shape_text({{"logits", logits}}) + ", " +
                     shape_text({{"vocab", row.vocab},
                                 {"score_token", row.score_token},
                                 {"alternatives", row.alternatives}});
            });
  }

  static bool is_penalized(const SampleRow& row) {
    return row.score_token < 0 && row.repetition_penalty != 1.0;
  }
  static std::size_t seen_words(const SampleRow& row) {
    return (static_cast<std::size_t>(row.vocab) + 31) / 32;
  }
  // A bit per id for every row with a penalty: much less than a long history, and each token once.
  void collect_seen(std::span<const SampleRow> rows) {
    seen_.clear();
    for (const SampleRow& row : rows) {
      if (!is_penalized(row)) continue;
      const std::size_t first = seen_.size();
      seen_.resize(first + seen_words(row), 0);
      for (const TokenId token : row.history) {
        if (token < 0 || token >= row.vocab) continue;
        const auto id = static_cast<std::size_t>(token);
        seen_[first + id / 32] |= 1U << (id % 32);
      }
    }
  }

  static void check_segment(const AttentionSegment& segment, std::int64_t rows,
                            const KvLayerView& cache) {
    const auto check = [&](bool condition, const char* what) {
      require(condition, "attention", what, [&] {
        return shape_text({{"rows", rows},
                           {"query_begin", segment.query_begin},
                           {"query_count", segment.query_count},
                           {"context_tokens", segment.context_tokens},
                           {"window", segment.window},
                           {"pages", static_cast<std::int64_t>(segment.pages.size())}}) +
               ", " + shape_of(cache);
      });
    };
    check(segment.query_begin >= 0 && segment.query_count >= 0 &&
              segment.query_begin + segment.query_count <= rows &&
              segment.context_tokens >= segment.query_count && segment.window >= 0,
          "a segment's rows");
    const auto blocks = static_cast<std::size_t>((segment.context_tokens + cache.page_tokens - 1) /
                                                 cache.page_tokens);
    const std::size_t closed = cache.quantized() && blocks > 0 ? blocks - 1 : blocks;
    check((segment.weights == nullptr) == (segment.weights_stride == 0) &&
              (segment.weights == nullptr || segment.chosen != nullptr),
          "weights and their stride, of lists");
    if (segment.chosen != nullptr) {
      const Selection& chosen = *segment.chosen;
      check(segment.query_count == 1 &&
                (segment.weights == nullptr || segment.weights_stride >= chosen.capacity) &&
                (chosen.lists == 1 || chosen.lists == cache.kv_heads) && segment.chosen_row >= 0 &&
                segment.chosen_row < chosen.rows && chosen.tokens != nullptr &&
                chosen.counts != nullptr,
            "a row of chosen lists");
    }
    check(segment.pages.size() >= closed, "a segment's pages");
    if (!cache.quantized() || blocks == 0) return;
    check(segment.scale_pages.size() >= closed && segment.partial_page.valid(),
          "a segment's scale pages or partial page");
    check(segment.query_count == 0 || segment.context_tokens - segment.query_count >=
                                          static_cast<std::int64_t>(closed) * cache.page_tokens,
          "INT8 queries of more than one block in a segment");
  }

  Device* device_;
  CudaOpsSettings settings_;
  std::shared_ptr<ArgumentRing> arguments_;
  DeviceScratch scratch_;
  DeviceScratch converted_;
  DeviceScratch results_;
  StepPlan step_plan_;
  std::vector<std::int32_t> words_;  // of tables and slots on their way
  // Of Ops::sample; kept to reuse their memory.
  std::vector<SampleTask> tasks_;
  std::vector<std::uint32_t> seen_;
};

}  // namespace

std::unique_ptr<CudaOps> make_cuda_ops(Device& device, std::shared_ptr<ArgumentRing> arguments,
                                       CudaOpsSettings settings) {
  return std::make_unique<CudaOpsOnStreams>(device, std::move(arguments), std::move(settings));
}

}  // namespace triphase::cuda
