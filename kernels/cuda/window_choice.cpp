#include "kernels/cuda/window_choice.h"

#include <algorithm>

#include "kernels/cuda/weight_window.h"

namespace triphase::cuda {
namespace {

std::string shape_of(const WeightWindow& window) {
  return shape_text({{"tokens", window.tokens}, {"room", window.room}});
}

void check_window(const WeightWindow& window, const char* operation) {
  require(is_window(window), operation, "a window without memory or sizes",
          [&] { return shape_of(window); });
}

void check_step(const WeightWindow& window, const WindowStep& step, std::int64_t context,
                const char* operation) {
  check_window(window, operation);
  require(is_step_of(window, step, context), operation, "a step beyond its window", [&] {
    return shape_of(window) + ", " +
           shape_text({{"context", context},
                       {"begin", step.begin},
                       {"count", step.count},
                       {"expired", step.expired}});
  });
}

}  // namespace

void clear_windows(const SparseCall& call, std::span<const WeightWindow> windows) {
  std::int64_t most_words = 0;
  for (const WeightWindow& window : windows) {
    check_window(window, "clear_weights");
    most_words = std::max(most_words, window.exact()
                                          ? window.tokens
                                          : std::max<std::int64_t>(1, window.room) * window.tokens);
  }
  if (windows.empty()) return;
  clear_weights(call.send(windows), std::ssize(windows), most_words, call.handle);
}

void add_to_windows(const SparseCall& call, const Selection& attended, std::int64_t heads,
                    std::span<const WeightRow> rows, std::int64_t layer, bool beside) {
  if (rows.empty()) return;
  const auto check = [&](bool condition, const char* what, const WeightRow& row) {
    require(condition, "add_weights", what, [&] {
      return shape_of(row.window) + ", " +
             shape_text({{"rows", attended.rows},
                         {"lists", attended.lists},
                         {"heads", heads},
                         {"capacity", attended.capacity},
                         {"attended", row.attended},
                         {"count", row.step.count},
                         {"context", row.context}});
    });
  };
  std::int64_t most_entering = 0;
  std::int64_t most_expiring = 0;
  for (const WeightRow& row : rows) {
    check_step(row.window, row.step, row.context, "add_weights");
    check(attended.lists == 1 && row.attended >= 0 && row.attended < attended.rows &&
              row.step.count <= attended.capacity,
          "a row beyond the selection", row);
    most_entering = std::max(most_entering, row.step.count);
    most_expiring = std::max(most_expiring, row.window.exact()     ? row.step.expired
                                            : row.step.expired > 0 ? row.context
                                                                   : 0);
  }
  const WeightRow* sent = call.send(rows);
  if (call.announces()) return;
  add_weights(sent, std::ssize(rows), attended.tokens, scores_of(attended, heads), most_entering,
              most_expiring, layer, beside, call.handle);
}

void add_prompts_to_windows(const SparseCall& call, const ConstMatrix& q, std::int64_t heads,
                            const KvLayerView& cache, std::span<const PromptWindowRows> chunks,
                            ScoreScale scale) {
  std::vector<AttentionSegment> segments;
  std::vector<std::int32_t> begins;
  std::int64_t longest = 0;
  for (const PromptWindowRows& chunk : chunks) {
    const AttentionSegment& segment = chunk.segment;
    check_keys(cache, segment, "add_prompt_rows");
    check_segment(q, heads, cache, segment, "add_prompt_rows");
    const LaunchCheck check("add_prompt_rows", [&] {
      return shape_of(cache, segment) + ", " + shape_of(chunk.window) + ", " +
             shape_text({{"query_count", segment.query_count}, {"steps", std::ssize(chunk.steps)}});
    });
    const auto steps = std::ssize(chunk.steps);
    check(steps == segment.query_count, "not a step for each query");
    for (std::int64_t i = 0; i < steps; ++i) {
      const WindowStep& step = chunk.steps[static_cast<std::size_t>(i)];
      const std::int64_t row = segment.context_tokens - (steps - 1 - i);
      check_step(chunk.window, step, row, "add_prompt_rows");
      check(step.count == row && step.expired == 0,
            "a row that is not dense, or in which others expire");
      begins.push_back(static_cast<std::int32_t>(step.begin));
    }
    segments.push_back(segment);
    longest = std::max(longest, segment.context_tokens);
  }
  if (begins.empty()) return;
  const std::int64_t totals = prompt_total_floats(heads, longest);
  std::byte* base = call.scratch(totals * std::int64_t{sizeof(float)});
  const KeyTables tables = send_tables(call, cache, segments, {}, false, begins);
  const PrefillColumns columns = columns_of(q, heads, cache, scale, tables);
  std::vector<WindowPart> parts;
  const std::int32_t* own_begins = tables.more;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    parts.push_back({.rows = part_of(columns, segments[i], i, tables),
                     .window = chunks[i].window,
                     .begins = own_begins});
    own_begins += segments[i].query_count;
  }
  lay_out_tiles(columns, parts);
  add_prompt_rows(columns, parts, call.send(std::span<const WindowPart>(parts)),
                  {reinterpret_cast<float*>(base), static_cast<std::size_t>(totals)}, call.handle);
}

Selection choose_from_windows(const SparseCall& call, std::span<const WindowChoice> rows,
                              std::int64_t layers) {
  if (rows.empty()) return {};
  std::vector<RowLimits> limits;
  for (const WindowChoice& row : rows) {
    check_window(row.window, "choose_recent_and_heaviest");
    require(
        row.context > 0 && row.context <= row.window.tokens && row.local >= 0 &&
            row.local <= std::min(row.total, row.context),
        "choose_recent_and_heaviest", "a choice beyond the context", [&] {
          return shape_of(row.window) + ", " +
                 shape_text({{"context", row.context}, {"local", row.local}, {"total", row.total}});
        });
    limits.push_back({.tokens = std::min(row.total, row.context)});
  }
  const WindowChoice* sent = call.send(rows);
  const MadeLists lists = make_lists(call, limits, 1, 0, layers);
  if (!call.announces()) {
    choose_heaviest(sent, std::ssize(rows), layers, lists.tokens, lists.capacity, lists.counts,
                    call.handle);
  }
  return lists.selection(static_cast<std::size_t>(layers) * rows.size(), 1, false);
}

}  // namespace triphase::cuda
