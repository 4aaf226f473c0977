#pragma once

// What the operations of the CUDA SparseOps share: memory of a call, tables of the rows' keys on
// their way to the device, the lists that are being made, and checks.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/listed_scores.h"
#include "kernels/cuda/prefill_colsum.h"
#include "kernels/cuda/score_rows.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sparse_ops.h"

namespace triphase::cuda {

// One row's limits in a choice: tokens of a list, and how many newest tokens are forced into it.
struct RowLimits {
  std::int64_t tokens = 0;
  std::int64_t recent = 0;
  friend bool operator==(const RowLimits&, const RowLimits&) = default;
};

// Tables that were announced in a step, and for what: the same rows have the same in each layer.
struct AnnouncedTables {
  const SegmentTables* known = nullptr;
  std::int64_t table_row = 0;
  std::size_t rows = 0;
  bool columns = false;
  std::vector<RowLimits> limits;
  const std::int32_t* sent = nullptr;
};

struct SparseMemory {
  SparseMemory(Device& device, std::shared_ptr<ArgumentRing> ring)
      : arguments(std::move(ring)), scratch(device), lists(device) {}

  std::shared_ptr<ArgumentRing> arguments;
  DeviceScratch scratch;
  DeviceScratch lists;              // the last Selection
  std::vector<std::int32_t> words;  // of tables on their way; kept to reuse its memory
  std::vector<AnnouncedTables> announced;
  std::uint64_t announced_step = 0;  // ArgumentRing::steps() of these
};

// One call: `memory` is its own until the stream has run it.
struct SparseCall {
  SparseMemory& memory;
  Stream& stream;
  StreamHandle handle;

  template <class T>
  [[nodiscard]] const T* send(std::span<const T> values) const {
    return memory.arguments->send(values, stream);
  }
  // Whether the call says what it will take, and does nothing (Ops::begin_step).
  [[nodiscard]] bool announces() const { return memory.arguments->announcing(); }
  [[nodiscard]] std::byte* scratch(std::int64_t bytes) const {
    return memory.scratch.at_least(static_cast<std::size_t>(bytes), stream);
  }
};

// The Selection that is being made.
struct MadeLists {
  std::int32_t* tokens = nullptr;
  std::int32_t* counts = nullptr;
  float* alpha = nullptr;
  std::int64_t capacity = 0;

  // The lists from row `first` on.
  [[nodiscard]] MadeLists from(std::size_t first, std::int64_t heads, std::int64_t lists) const {
    const auto row = static_cast<std::int64_t>(first);
    return {tokens + row * lists * capacity, counts + row * lists, alpha + row * heads, capacity};
  }
  [[nodiscard]] Selection selection(std::size_t rows, std::int64_t lists, bool shares) const {
    return {static_cast<std::int64_t>(rows), lists, capacity, tokens, counts,
            shares ? alpha : nullptr};
  }
};
// Room for `lists` lists of each row in each of `layers` layers, as long as the longest, and for
// shares of `heads` query heads.
[[nodiscard]] MadeLists make_lists(const SparseCall& call, std::span<const RowLimits> limits,
                                   std::int64_t lists, std::int64_t heads, std::int64_t layers = 1);

[[nodiscard]] inline ListedScores scores_of(const Selection& attended, std::int64_t heads) {
  return {attended.scores.values, attended.scores.softmax, attended.capacity,
          static_cast<int>(heads / attended.lists)};
}

// Tables of some rows on the device.
struct KeyTables {
  const std::int32_t* length = nullptr;
  const std::int32_t* partial_page = nullptr;
  const std::int32_t* pages = nullptr;
  const std::int32_t* scale_pages = nullptr;
  const std::int32_t* ks = nullptr;
  const std::int32_t* locals = nullptr;
  const void* keys = nullptr;  // that `pages` count from
  KvChannels channels;         // where they are of K^T
  std::int64_t max_pages = 0;
  std::int64_t max_length = 0;
  std::int64_t sequences = 0;
  const std::int32_t* more = nullptr;
};
// Lengths, partial pages, limits (if any), pages, scale pages, `more` numbers: one array on its
// way. With `columns` the pages before a query's own are those of K^T.
[[nodiscard]] KeyTables send_tables(const SparseCall& call, const KvLayerView& cache,
                                    std::span<const AttentionSegment> rows,
                                    std::span<const RowLimits> limits, bool columns,
                                    std::span<const std::int32_t> more = {});
// Keys by rows.
[[nodiscard]] ScoreKeys score_keys_of(const KvLayerView& cache, const KeyTables& tables);
// What prompts' chunks have in common, and a chunk: the `index`-th of those that tables were sent
// for.
[[nodiscard]] PrefillColumns columns_of(const ConstMatrix& q, std::int64_t heads,
                                        const KvLayerView& cache, ScoreScale scale,
                                        const KeyTables& tables);
[[nodiscard]] ColumnPart part_of(const PrefillColumns& columns, const AttentionSegment& segment,
                                 std::size_t index, const KeyTables& tables);
[[nodiscard]] inline ScoreQueries query_of(const ConstMatrix& q, std::int64_t row,
                                           std::int64_t heads) {
  return {static_cast<const float*>(q.data) + row * q.row_stride, q.row_stride, heads};
}
// Scratch for `rows` rows whose contexts have at most `length` tokens, pages or clusters.
[[nodiscard]] CudaSparseScratch scratch_of(std::int64_t heads, std::int64_t kv_heads,
                                           std::int64_t head_dim, std::int64_t length,
                                           std::int64_t rows = 1);

// Calls body(first, count) for stretches of at most `most` rows whose queries follow each other and
// that alike(row, next) joins.
template <class Alike, class Body>
void for_runs(std::span<const AttentionSegment> rows, std::size_t most, const Alike& alike,
              const Body& body) {
  std::size_t first = 0;
  while (first < rows.size()) {
    std::size_t end = first + 1;
    while (end < rows.size() && end - first < most && alike(end - 1, end) &&
           rows[end].query_begin == rows[end - 1].query_begin + 1) {
      ++end;
    }
    body(first, end - first);
    first = end;
  }
}

// Checks, by the operation's name.
[[nodiscard]] std::string shape_of(const KvLayerView& cache, const AttentionSegment& keys);
[[nodiscard]] std::string shape_of(const ConstMatrix& q, std::int64_t row, std::int64_t heads,
                                   std::int64_t kv_heads);
void check_keys(const KvLayerView& cache, const AttentionSegment& keys, const char* operation);
void check_segment(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                   const AttentionSegment& segment, const char* operation);
template <class Shape>
void check_query(const ConstMatrix& q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                 const char* operation, const Shape& shape) {
  require(q.data != nullptr && q.dtype == DType::kF32 && row >= 0 && row < q.rows && kv_heads > 0 &&
              heads > 0 && heads % kv_heads == 0 && q.cols % heads == 0,
          operation, "a row of whole groups of heads, in F32", shape);
}

}  // namespace triphase::cuda
