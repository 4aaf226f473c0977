#include "kernels/cuda/sparse_calls.h"

#include <algorithm>

#include "kernels/cuda/cache_view.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/ops_scratch.h"

namespace triphase::cuda {

std::string shape_of(const KvLayerView& cache, const AttentionSegment& keys) {
  return shape_text({{"context_tokens", keys.context_tokens},
                     {"pages", std::ssize(keys.pages)},
                     {"page_tokens", cache.page_tokens},
                     {"kv_heads", cache.kv_heads},
                     {"head_dim", cache.head_dim}}) +
         ", cache " + std::string(dtype_name(cache.dtype));
}

void check_keys(const KvLayerView& cache, const AttentionSegment& keys, const char* operation) {
  const LaunchCheck check(operation, [&] { return shape_of(cache, keys); });
  check(cache.k != nullptr && cache.page_tokens > 0 && cache.kv_heads > 0 && cache.head_dim > 0 &&
            (cache.kt == nullptr || (cache.kt_ready != nullptr && cache.kt_run > 0 &&
                                     (cache.kt_run & (cache.kt_run - 1)) == 0)),
        "a cache without keys or sizes");
  check(keys.context_tokens > 0, "no context");
  const std::int64_t blocks = blocks_of(cache, keys);
  const std::int64_t full = cache.quantized() ? blocks - 1 : blocks;
  check(std::ssize(keys.pages) >= full, "a segment's pages");
  check(!cache.quantized() || (std::ssize(keys.scale_pages) >= full && keys.partial_page.valid()),
        "a segment's scale pages or partial page");
}

std::string shape_of(const ConstMatrix& q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads) {
  return shape_text({{"q", q}}) + ", " +
         shape_text({{"row", row}, {"heads", heads}, {"kv_heads", kv_heads}});
}

void check_segment(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                   const AttentionSegment& segment, const char* operation) {
  const LaunchCheck check(operation, [&] {
    return shape_of(cache, segment) + ", " +
           shape_of(q, segment.query_begin, heads, cache.kv_heads) + ", " +
           shape_text({{"query_count", segment.query_count}});
  });
  check(q.data != nullptr && q.dtype == DType::kF32 && heads > 0 && heads % cache.kv_heads == 0 &&
            q.cols == heads * cache.head_dim,
        "q must be F32 rows of the cache's heads");
  check(segment.query_begin >= 0 && segment.query_count >= 0 &&
            segment.query_count <= segment.context_tokens &&
            segment.query_begin + segment.query_count <= q.rows && segment.chosen == nullptr,
        "a segment's rows");
  check(segment.log_sums != nullptr, "no log-sums of the segment's attention");
}

MadeLists make_lists(const SparseCall& call, std::span<const RowLimits> limits, std::int64_t lists,
                     std::int64_t heads, std::int64_t layers) {
  MadeLists made;
  for (const RowLimits& limit : limits) {
    made.capacity = std::max(made.capacity, list_capacity(limit.tokens));
  }
  const CudaListLayout layout =
      cuda_list_layout(layers * std::ssize(limits), lists, made.capacity, heads);
  std::byte* base = call.memory.lists.at_least(static_cast<std::size_t>(layout.bytes), call.stream);
  made.tokens = reinterpret_cast<std::int32_t*>(base + layout.tokens_at);
  made.counts = reinterpret_cast<std::int32_t*>(base + layout.counts_at);
  made.alpha = reinterpret_cast<float*>(base + layout.alpha_at);
  return made;
}

CudaSparseScratch scratch_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                             std::int64_t length, std::int64_t rows) {
  return cuda_sparse_scratch({.heads = heads,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .max_query_rows = 1,
                              .max_context = length},
                             rows);
}

namespace {

// What make() sends for rows that have tables, or what the step announced for them.
template <class Make>
const std::int32_t* announced_or_made(const SparseCall& call,
                                      std::span<const AttentionSegment> rows,
                                      std::span<const RowLimits> limits, bool columns,
                                      const Make& make) {
  SparseMemory& memory = call.memory;
  if (memory.announced_step != memory.arguments->steps()) {
    memory.announced.clear();
    memory.announced_step = memory.arguments->steps();
  }
  const AttentionSegment& first = rows.front();
  const auto found = std::ranges::find_if(memory.announced, [&](const AnnouncedTables& announced) {
    return announced.known == first.tables && announced.table_row == first.table_row &&
           announced.rows == rows.size() && announced.columns == columns &&
           std::ranges::equal(announced.limits, limits);
  });
  if (found != memory.announced.end()) return found->sent;
  const std::int32_t* sent = make();
  if (call.announces()) {
    memory.announced.push_back({first.tables,
                                first.table_row,
                                rows.size(),
                                columns,
                                {limits.begin(), limits.end()},
                                sent});
  }
  return sent;
}

}  // namespace

KeyTables send_tables(const SparseCall& call, const KvLayerView& cache,
                      std::span<const AttentionSegment> rows, std::span<const RowLimits> limits,
                      bool columns, std::span<const std::int32_t> more) {
  std::vector<std::int32_t>& words = call.memory.words;
  KeyTables tables;
  tables.sequences = std::ssize(rows);
  for (const AttentionSegment& row : rows) {
    tables.max_pages = std::max(tables.max_pages, blocks_of(cache, row));
    tables.max_length = std::max(tables.max_length, row.context_tokens);
  }
  tables.max_pages = table_pages(tables.max_pages);
  // What make_tables() sent serves rows that follow each other there, but for K^T.
  const SegmentTables* known = rows.front().tables;
  bool follows = true;
  for (std::size_t row = 1; row < rows.size(); ++row) {
    follows =
        follows && rows[row].tables == known && rows[row].table_row == rows[row - 1].table_row + 1;
  }
  const SegmentTables* sent_before = columns || !follows ? nullptr : known;
  // Pages are counted from the layer's first, as K^T's are, so that all layers have the same table.
  const std::int64_t layer = columns && known != nullptr ? rows.front().table_layer : 0;
  const auto in_first_layer = [layer](PageId page) {
    return page.valid() ? page.value - static_cast<std::int32_t>(layer) : page.value;
  };
  const std::int32_t* partial_pages =
      known == nullptr || !follows
          ? nullptr
          : known->partial_pages_at(rows.front().table_row, rows.front().table_layer);
  const std::size_t count = rows.size();
  const auto pages =
      sent_before != nullptr ? std::size_t{0} : static_cast<std::size_t>(tables.max_pages);
  const std::size_t pages_at = 4 * count;
  const std::size_t scales_at = pages_at + count * pages;
  const std::size_t more_at = scales_at + (cache.quantized() ? count * pages : 0);
  const auto make = [&] {
    words.assign(more_at, 0);
    for (std::size_t row = 0; row < count; ++row) {
      const AttentionSegment& keys = rows[row];
      words[row] = static_cast<std::int32_t>(keys.context_tokens);
      if (partial_pages == nullptr) words[count + row] = keys.partial_page.value;
      if (!limits.empty()) {
        words[2 * count + row] = static_cast<std::int32_t>(limits[row].tokens);
        words[3 * count + row] = static_cast<std::int32_t>(limits[row].recent);
      }
      if (sent_before != nullptr) continue;
      const auto blocks = static_cast<std::size_t>(blocks_of(cache, keys));
      for (std::size_t i = 0; i < std::min(blocks, keys.pages.size()); ++i) {
        const bool transposed = columns && i + 1 < blocks;
        words[pages_at + row * pages + i] =
            transposed ? column_page(cache, keys, i).value : in_first_layer(keys.pages[i]);
      }
      if (!cache.quantized()) continue;
      for (std::size_t i = 0; i < std::min(blocks, keys.scale_pages.size()); ++i) {
        words[scales_at + row * pages + i] = keys.scale_pages[i].value;
      }
    }
    words.insert(words.end(), more.begin(), more.end());
    return call.send(std::span<const std::int32_t>(words));
  };
  const std::int32_t* sent = known == nullptr || !follows || !more.empty()
                                 ? make()
                                 : announced_or_made(call, rows, limits, columns, make);
  tables.length = sent;
  tables.partial_page = partial_pages != nullptr ? partial_pages : sent + count;
  tables.ks = sent + 2 * count;
  tables.locals = sent + 3 * count;
  tables.keys = from_page(cache, layer).k;
  if (columns) tables.channels = channels_of(cache);
  tables.pages = sent + pages_at;
  tables.scale_pages = sent + scales_at;
  tables.more = sent + more_at;
  if (sent_before == nullptr) return tables;
  const AttentionSegment& first = rows.front();
  tables.max_pages = sent_before->max_pages;
  tables.keys = from_page(cache, first.table_layer).k;
  tables.pages = sent_before->pages + first.table_row * sent_before->max_pages;
  if (cache.quantized()) {
    tables.scale_pages = sent_before->scale_pages + first.table_row * sent_before->max_pages;
  }
  return tables;
}

PrefillColumns columns_of(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                          ScoreScale scale, const KeyTables& tables) {
  PrefillColumns call;
  call.q = static_cast<const float*>(q.data);
  call.q_stride = q.row_stride;
  call.k = tables.keys;
  call.dtype = cache.dtype;
  call.scales = cache.scales;
  call.partial_k = cache.partial_k;
  call.partial_dtype = cache.partial_dtype;
  call.page_tokens = cache.page_tokens;
  call.heads = heads;
  call.kv_heads = cache.kv_heads;
  call.head_dim = cache.head_dim;
  call.scale = scale.factor;
  return call;
}

ColumnPart part_of(const PrefillColumns& columns, const AttentionSegment& segment,
                   std::size_t index, const KeyTables& tables) {
  const std::int64_t pages_at = static_cast<std::int64_t>(index) * tables.max_pages;
  return {.q = columns.q + segment.query_begin * columns.q_stride,
          .log_sums = segment.log_sums + segment.query_begin * columns.heads,
          .queries = segment.query_count,
          .first_position = segment.context_tokens - segment.query_count,
          .window = segment.window,
          .pages = tables.pages + pages_at,
          .scale_pages = tables.scale_pages + pages_at,
          .partial_page = segment.partial_page.value};
}

ScoreKeys score_keys_of(const KvLayerView& cache, const KeyTables& tables) {
  return {.keys = tables.keys,
          .dtype = cache.dtype,
          .scales = cache.scales,
          .partial_keys = cache.partial_k,
          .partial_pages = tables.partial_page,
          .partial_dtype = cache.partial_dtype,
          .pages = tables.pages,
          .scale_pages = tables.scale_pages,
          .max_pages = tables.max_pages,
          .lengths = tables.length,
          .sequences = tables.sequences,
          .max_length = tables.max_length,
          .page_tokens = cache.page_tokens,
          .kv_heads = cache.kv_heads,
          .head_dim = cache.head_dim};
}

}  // namespace triphase::cuda
