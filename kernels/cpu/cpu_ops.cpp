#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd_target.h"
#include "kernels/expert_parts.h"
#include "kernels/sizing/attention_workspace.h"
#include "kernels/sizing/sample_workspace.h"

namespace triphase {
namespace {

// A view that the operation may walk: its type is one it computes with and its rows do not overlap.
bool is_valid(const ConstMatrix& matrix) {
  return matrix.rows >= 0 && matrix.cols >= 0 && is_float(matrix.dtype) &&
         (matrix.rows <= 1 || matrix.row_stride >= matrix.cols) &&
         (matrix.data != nullptr || matrix.rows == 0 || matrix.cols == 0);
}

bool is_activation(const ConstMatrix& matrix) {
  return matrix.dtype == DType::kF32 && is_valid(matrix);
}

bool same_shape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

// As it lies on the device, or in records.
bool is_cache(const KvLayerView& cache) {
  const bool typed = cache.quantized()
                         ? cache.scales != nullptr && cache.partial_k != nullptr &&
                               cache.partial_v != nullptr && is_float(cache.partial_dtype) &&
                               cache.page_tokens % 16 == 0
                         : is_float(cache.dtype);
  const bool laid_out = !cache.records || !cache.quantized();
  return typed && laid_out && cache.k != nullptr && cache.v != nullptr && cache.page_tokens > 0 &&
         cache.kv_heads > 0 && cache.head_dim > 0;
}

void check_indices(std::span<const std::int32_t> indices, const ConstMatrix& table,
                   const ConstMatrix& y, std::string_view operation) {
  TRIPHASE_CHECK(
      is_valid(table) && is_activation(y) && y.cols == table.cols && std::ssize(indices) == y.rows,
      operation);
  for (const std::int32_t index : indices) {
    TRIPHASE_CHECK(index >= 0 && index < table.rows, operation);
  }
}

// Rows [first, first + count), and some columns.
Matrix rows_of(Matrix all, std::int64_t first, std::int64_t count) {
  all.data = static_cast<float*>(all.data) + first * all.row_stride;
  all.rows = count;
  return all;
}
Matrix columns_of(Matrix all, std::int64_t first, std::int64_t cols) {
  all.data = static_cast<float*>(all.data) + first;
  all.cols = cols;
  return all;
}

// Matrix `index` of `count` that lie one after the other.
ConstMatrix part_of(ConstMatrix all, std::int64_t index, std::int64_t count) {
  const std::int64_t rows = all.rows / count;
  all.data = static_cast<const std::byte*>(all.data) +
             static_cast<std::size_t>(index * rows * all.row_stride) * dtype_bytes(all.dtype);
  all.rows = rows;
  return all;
}

const float* bias_of(const float* all, std::int64_t index, std::int64_t rows) {
  return all == nullptr ? nullptr : all + index * rows;
}

class CpuOps final : public Ops {
 public:
  CpuOps(ThreadPool& pool, std::string_view simd)
      : pool_(&pool), name_("cpu (" + std::string(simd) + ")") {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  void linear(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
              Stream&) override {
    TRIPHASE_CHECK(is_activation(x) && is_valid(w) && is_activation(y) && x.cols == w.cols &&
                       y.rows == x.rows && y.cols == w.rows,
                   "linear: shapes");
    cpu::linear(*pool_, x, w, bias, accumulate, y);
  }

  void linear_by_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit,
                      Matrix y, Stream& stream) override {
    if (limit.count != nullptr) {
      x.rows = y.rows = std::clamp<std::int64_t>(*limit.count - limit.first, 0, x.rows);
    }
    linear(x, w, bias, false, y, stream);
  }

  void embed(std::span<const TokenId> ids, ConstMatrix table, float scale, Matrix y,
             Stream&) override {
    check_indices(ids, table, y, "embed: shapes or an id out of range");
    cpu::embed(*pool_, ids, table, scale, y);
  }

  void add_positions(std::span<const std::int32_t> positions, ConstMatrix table, Matrix y,
                     Stream&) override {
    check_indices(positions, table, y, "add_positions: shapes or a position out of range");
    cpu::add_positions(*pool_, positions, table, y);
  }

  void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix y, Stream&) override {
    check_indices(rows, x, y, "gather_rows: shapes or a row out of range");
    TRIPHASE_CHECK(x.dtype == DType::kF32, "gather_rows: type");
    cpu::gather_rows(*pool_, x, rows, y);
  }

  void experts(ConstMatrix x, const ExpertLayer& layer, bool accumulate, Matrix y,
               Workspace workspace, Stream& stream) override {
    TRIPHASE_CHECK(
        is_activation(x) && is_activation(y) && is_valid(layer.up) && is_valid(layer.down),
        "experts: types");
    const ExpertParts parts = expert_parts(x, layer, y, workspace);
    const auto choices = static_cast<std::size_t>(parts.shape.choices());
    const std::span experts(parts.experts, choices);
    const std::span shares(parts.shares, choices);
    const std::span places(parts.places, choices);
    const std::span rows(parts.rows, choices);
    const std::span begins(parts.begins, static_cast<std::size_t>(parts.shape.experts) + 1);
    linear(x, layer.router, layer.router_bias, false, parts.logits, stream);
    cpu::choose_experts(*pool_, parts.logits, layer.shares_sum_to_one, experts, shares);
    cpu::group_by_expert(experts, x.rows, places, rows, begins);
    cpu::gather_rows(*pool_, x, rows, parts.outputs);
    for (std::int64_t expert = 0; expert < parts.shape.experts; ++expert) {
      run_expert(layer, parts, expert, stream);
    }
    cpu::sum_rows(*pool_, parts.outputs, places, shares, accumulate, y);
  }

  void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                Stream&) override {
    TRIPHASE_CHECK(
        is_activation(x) && is_activation(y) && same_shape(x, y) && x.cols > 0 && weight != nullptr,
        "rms_norm: shapes");
    cpu::rms_norm(*pool_, x, weight, weight_offset, eps, false, y);
  }

  void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                    Stream&) override {
    TRIPHASE_CHECK(is_activation(x) && is_activation(y) && same_shape(x, y) && x.cols > 0 &&
                       x.data != y.data && weight != nullptr,
                   "add_rms_norm: shapes");
    cpu::rms_norm(*pool_, x, weight, weight_offset, eps, true, y);
  }

  void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset, float eps,
                 Stream&) override {
    TRIPHASE_CHECK(
        is_activation(x) && heads > 0 && x.cols > 0 && x.cols % heads == 0 && weight != nullptr,
        "head_norm: shapes");
    cpu::head_norm(*pool_, x, heads, weight, weight_offset, eps);
  }

  void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                  Stream&) override {
    TRIPHASE_CHECK(
        is_activation(x) && is_activation(y) && same_shape(x, y) && x.cols > 0 && weight != nullptr,
        "layer_norm: shapes");
    cpu::layer_norm(*pool_, x, weight, bias, eps, y);
  }

  void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
            ConstMatrix cos_sin, Stream&) override {
    TRIPHASE_CHECK(is_activation(x) && is_activation(cos_sin) && heads > 0 && head_dim > 0 &&
                       x.cols >= heads * head_dim && rotary_dim >= 0 && rotary_dim % 2 == 0 &&
                       rotary_dim <= head_dim && cos_sin.rows == x.rows &&
                       cos_sin.cols == rotary_dim,
                   "rope: shapes");
    cpu::rope(*pool_, x, heads, head_dim, rotary_dim, cos_sin);
  }

  void gated_activation(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
                        Stream&) override {
    TRIPHASE_CHECK(is_activation(gate) && is_activation(up) && is_activation(y) &&
                       same_shape(gate, y) && same_shape(up, y),
                   "gated_activation: shapes");
    cpu::gated_activation(*pool_, activation, gate, up, y);
  }

  void activate(Activation activation, Matrix y, Stream&) override {
    TRIPHASE_CHECK(is_activation(y), "activate: shapes");
    cpu::activate(*pool_, activation, y);
  }

  void soft_cap(float cap, Matrix y, Stream&) override {
    TRIPHASE_CHECK(is_activation(y) && cap > 0.0F, "soft_cap: shapes or cap");
    cpu::soft_cap(*pool_, cap, y);
  }

  [[nodiscard]] SegmentTables make_tables(std::span<const AttentionSegment>, const KvSlots&,
                                          const StepPartialPages&, const KvLayerView&,
                                          Stream&) override {
    return {};
  }

  void kv_append(ConstMatrix k, ConstMatrix v, const KvSlots& slots, const KvLayerView& cache,
                 Stream&) override {
    TRIPHASE_CHECK(is_activation(k) && is_activation(v) && same_shape(k, v) && is_cache(cache) &&
                       !cache.records && k.cols == cache.kv_heads * cache.head_dim &&
                       std::ssize(slots.pages) == k.rows &&
                       slots.offsets.size() == slots.pages.size(),
                   "kv_append: shapes");
    for (std::size_t row = 0; row < slots.pages.size(); ++row) {
      TRIPHASE_CHECK(slots.pages[row].valid() && slots.offsets[row] >= 0 &&
                         slots.offsets[row] < cache.page_tokens,
                     "kv_append: a slot out of range");
    }
    cpu::kv_append(*pool_, k, v, slots, cache);
  }

  void quantize_blocks(const FullBlocks& full_blocks, const KvLayerView& cache, Stream&) override {
    TRIPHASE_CHECK(is_cache(cache) && cache.quantized(), "quantize_blocks: not an INT8 cache");
    for (const FullBlock& block : full_blocks.blocks) {
      TRIPHASE_CHECK(block.partial_page.valid() && block.page.valid() && block.scale_page.valid(),
                     "quantize_blocks: a page out of range");
    }
    cpu::quantize_blocks(*pool_, full_blocks.blocks, cache);
  }

  void attention(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> segments, ScoreScale scale, Matrix out,
                 Workspace workspace, Stream&) override {
    TRIPHASE_CHECK(is_activation(q) && is_activation(out) && same_shape(q, out) &&
                       is_cache(cache) && heads > 0 && heads % cache.kv_heads == 0 &&
                       q.cols == heads * cache.head_dim,
                   "attention: shapes");
    AttentionShape shape{.heads = heads,
                         .kv_heads = cache.kv_heads,
                         .head_dim = cache.head_dim,
                         .max_query_rows = q.rows,
                         .max_context = 0,
                         .threads = pool_->threads()};
    std::int64_t queries = 0;
    for (const AttentionSegment& segment : segments) {
      check_segment(segment, q.rows, cache);
      queries += segment.query_count;
      const Selection* chosen = segment.chosen;
      if (chosen != nullptr) check_chosen(segment, cache);
      shape.max_context = std::max(shape.max_context,
                                   chosen == nullptr ? segment.context_tokens : chosen->capacity);
    }
    TRIPHASE_CHECK(queries <= q.rows, "attention: segments share rows");
    TRIPHASE_CHECK(reinterpret_cast<std::uintptr_t>(workspace.data) % 64 == 0 &&
                       workspace.bytes >= attention_workspace_bytes(shape),
                   "attention: workspace smaller than kernels/sizing says or not aligned");
    cpu::attention(*pool_, {q, heads, cache, segments, scale, out}, shape, workspace);
  }

  void sample(ConstMatrix logits, std::span<const SampleRow> rows, SampleResult* results,
              Workspace workspace, Stream&) override {
    TRIPHASE_CHECK(is_activation(logits) && std::ssize(rows) == logits.rows &&
                       (results != nullptr || rows.empty()),
                   "sample: shapes");
    for (const SampleRow& row : rows) {
      TRIPHASE_CHECK(row.vocab > 0 && row.vocab <= logits.cols && row.score_token < row.vocab &&
                         row.alternatives <= kMaxAlternatives && row.top_p > 0.0 &&
                         row.repetition_penalty > 0.0,
                     "sample: a row's parameters");
    }
    TRIPHASE_CHECK(
        reinterpret_cast<std::uintptr_t>(workspace.data) % 64 == 0 &&
            workspace.bytes >= sample_workspace_bytes({.threads = pool_->threads()}, logits.cols),
        "sample: workspace smaller than kernels/sizing says or not aligned");
    cpu::sample(*pool_, logits, rows, results, workspace);
  }

 private:
  // The rows of one expert, which its outputs replace.
  void run_expert(const ExpertLayer& layer, const ExpertParts& parts, std::int64_t expert,
                  Stream& stream) {
    const ExpertShape& shape = parts.shape;
    const std::int64_t first = parts.begins[expert];
    const std::int64_t count = parts.begins[expert + 1] - first;
    if (count == 0) return;
    const Matrix rows = rows_of(parts.outputs, first, count);
    const Matrix up{parts.inner, DType::kF32, count, 2 * shape.ffn, 2 * shape.ffn};
    linear(rows, part_of(layer.up, expert, shape.experts),
           bias_of(layer.up_bias, expert, 2 * shape.ffn), false, up, stream);
    activation_linear(layer.activation, columns_of(up, 0, shape.ffn),
                      columns_of(up, shape.ffn, shape.ffn),
                      part_of(layer.down, expert, shape.experts),
                      bias_of(layer.down_bias, expert, shape.hidden), false, rows, stream);
  }

  static void check_segment(const AttentionSegment& segment, std::int64_t rows,
                            const KvLayerView& cache) {
    TRIPHASE_CHECK(segment.query_begin >= 0 && segment.query_count >= 0 &&
                       segment.query_begin + segment.query_count <= rows &&
                       segment.context_tokens >= 0 && segment.window >= 0,
                   "attention: a segment's rows");
    if (segment.chosen != nullptr) return;
    const std::int64_t blocks = ceil_div(segment.context_tokens, cache.page_tokens);
    const auto holds = [](std::span<const PageId> pages, std::int64_t count) {
      return std::ssize(pages) >= count;
    };
    if (!cache.quantized()) {
      TRIPHASE_CHECK(holds(segment.pages, blocks), "attention: a segment's pages");
      return;
    }
    const std::int64_t first = segment.context_tokens - segment.query_count;
    TRIPHASE_CHECK(
        blocks == 0 || (holds(segment.pages, blocks - 1) &&
                        holds(segment.scale_pages, blocks - 1) && segment.partial_page.valid()),
        "attention: a segment's pages");
    TRIPHASE_CHECK(segment.query_count == 0 || first >= (blocks - 1) * cache.page_tokens,
                   "attention: INT8 queries of more than one block in a segment");
  }

  // No early end: the loop is all vectors, and lists are nearly always right.
  static bool ascends(std::span<const std::int32_t> tokens, std::int64_t context) {
    if (tokens.empty()) return true;
    std::int32_t disorder = static_cast<std::int32_t>(tokens.front() < 0);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      disorder |= static_cast<std::int32_t>(tokens[i] <= tokens[i - 1]);
    }
    return disorder == 0 && tokens.back() < context;
  }

  // Tokens of pages that are not on the device must have slots.
  static bool are_there(const AttentionSegment& segment, std::span<const std::int32_t> tokens,
                        const std::int32_t* slots, const KvLayerView& cache) {
    if (slots != nullptr) {
      std::int32_t least = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) least = std::min(least, slots[i]);
      return least >= 0;
    }
    const auto page_tokens = static_cast<std::uint32_t>(cache.page_tokens);
    std::size_t there = segment.pages.size();
    std::size_t own = there;
    if (cache.quantized()) own = static_cast<std::size_t>(segment.context_tokens - 1) / page_tokens;
    bool all = true;
    for (const std::int32_t token : tokens) {
      const std::size_t block = static_cast<std::uint32_t>(token) / page_tokens;
      all &= block == own || (block < there && segment.pages[block].valid());
    }
    return all;
  }

  // Every list's tokens ascend within the context and lie somewhere.
  static void check_chosen(const AttentionSegment& segment, const KvLayerView& cache) {
    const Selection& chosen = *segment.chosen;
    TRIPHASE_CHECK(
        !cache.records && (chosen.lists == 1 || chosen.lists == cache.kv_heads) &&
            (segment.query_count <= 1 || (chosen.scores.values == nullptr &&
                                          chosen.alpha == nullptr && chosen.all_from >= 0)) &&
            (chosen.means == nullptr || chosen.alpha != nullptr) &&
            (chosen.scores.values == nullptr) == (chosen.scores.softmax == nullptr) &&
            chosen.all_from <= segment.context_tokens - segment.query_count &&
            segment.chosen_row >= 0 && segment.chosen_row < chosen.rows,
        "attention: chosen lists");
    for (std::int64_t list = 0; list < chosen.lists; ++list) {
      const std::int64_t entry = segment.chosen_row * chosen.lists + list;
      const std::int32_t count = chosen.counts[entry];
      TRIPHASE_CHECK(count >= 0 && count <= chosen.capacity, "attention: a chosen list's length");
      const std::int64_t first = entry * chosen.capacity;
      const std::span<const std::int32_t> tokens = listed_tokens(segment, entry);
      TRIPHASE_CHECK(ascends(tokens, segment.context_tokens),
                     "attention: chosen tokens out of order or range");
      TRIPHASE_CHECK(are_there(segment, tokens,
                               chosen.slots == nullptr ? nullptr : chosen.slots + first, cache),
                     "attention: a chosen token that is not on the device");
    }
    if (!cache.quantized()) return;
    const std::int64_t blocks = ceil_div(segment.context_tokens, cache.page_tokens);
    TRIPHASE_CHECK(std::ssize(segment.scale_pages) >= blocks - 1 && segment.partial_page.valid(),
                   "attention: a segment's scale pages");
  }

  ThreadPool* pool_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool) {
  const char* limit = std::getenv("TRIPHASE_SIMD");
  return std::make_unique<CpuOps>(pool, cpu::use_simd_target(limit == nullptr ? "" : limit));
}

}  // namespace triphase
