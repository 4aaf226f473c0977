#include <string>

#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/select_row.h"

namespace triphase::cuda {
namespace {

__global__ void __launch_bounds__(kSelectThreads) select_top_kernel(SelectRows call, int k) {
  TRIPHASE_SHARED(unsigned, bins, kSelectBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const SelectRange range = select_range(call);
  const float* scores = call.scores + blockIdx.x * call.score_stride;
  const SelectCut cut =
      find_top_cut(scores, range, selected_entries(call, k), {bins, scratch, found});
  write_selected(call, scores, range, cut, scratch);
}

__global__ void __launch_bounds__(kSelectThreads)
    select_above_kernel(SelectRows call, const float* thresholds, std::int64_t rows_per_threshold) {
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const SelectRange range = select_range(call);
  const SelectCut cut{key_of(thresholds[blockIdx.x / rows_per_threshold]), 0xFFFFFFFFU};
  write_selected(call, call.scores + blockIdx.x * call.score_stride, range, cut, scratch);
}

// Block (row, piece of its list), one thread per token. Only the last page of a list can be short.
__global__ void __launch_bounds__(kSelectThreads) expand_pages_kernel(PageLists call) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int tokens = static_cast<int>(call.tokens);
  const int count = call.page_counts[row];
  const int length = call.lengths[row / call.rows_per_sequence];
  const std::int32_t* pages = call.pages + row * call.page_capacity;
  const int chosen =
      count == 0 ? 0 : (count - 1) * tokens + smaller(tokens, length - pages[count - 1] * tokens);
  const int at = static_cast<int>(blockIdx.y) * kSelectThreads + static_cast<int>(threadIdx.x);
  if (at == 0) call.counts[row] = chosen;
  if (at >= chosen) return;
  device_check(at < call.capacity);
  call.indices[row * call.capacity + at] = pages[at / tokens] * tokens + at % tokens;
}

std::string shape_of(const SelectRows& call) {
  return shape_text({{"rows", call.rows},
                     {"rows_per_sequence", call.rows_per_sequence},
                     {"max_length", call.max_length},
                     {"score_stride", call.score_stride},
                     {"sinks", call.sinks},
                     {"local", call.local},
                     {"capacity", call.capacity}});
}

void check_call(const SelectRows& call, std::string_view kernel) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const auto check = [&](bool condition, const char* what) {
    require(condition, kernel, what, [&] { return shape_of(call); });
  };
  check(call.rows_per_sequence > 0 && call.rows % call.rows_per_sequence == 0,
        "rows must be whole sequences");
  check(call.max_length < kLargest && call.score_stride >= call.max_length,
        "score_stride below the longest row");
  check(call.sinks >= 0 && call.local >= 0, "forced ranges must not be negative");
  check(call.scores != nullptr && call.lengths != nullptr && call.indices != nullptr &&
            call.counts != nullptr,
        "null pointer");
}

}  // namespace

void select_top(const SelectRows& call, std::int64_t k, StreamHandle stream) {
  check_call(call, "select_top");
  const auto shape = [&] { return shape_of(call) + ", " + shape_text({{"k", k}}); };
  const std::int64_t most = smaller(call.max_length, larger(k, call.sinks + call.local));
  require(k >= 0 && call.capacity >= most, "select_top", "capacity below k", shape);
  if (call.rows == 0) return;
  const auto wanted = static_cast<int>(smaller(k, std::int64_t{1} << 30));
  TRIPHASE_LAUNCH((select_top_kernel), static_cast<unsigned>(call.rows), kSelectThreads, 0, stream,
                  call, wanted);
  check_launched("select_top", shape);
}

void select_above(const SelectRows& call, const float* thresholds, std::int64_t rows_per_threshold,
                  StreamHandle stream) {
  check_call(call, "select_above");
  const auto shape = [&] {
    return shape_of(call) + ", " + shape_text({{"rows_per_threshold", rows_per_threshold}});
  };
  require(thresholds != nullptr && rows_per_threshold > 0, "select_above", "no thresholds", shape);
  require(call.capacity >= call.max_length, "select_above", "a threshold may keep every entry",
          shape);
  if (call.rows == 0) return;
  TRIPHASE_LAUNCH((select_above_kernel), static_cast<unsigned>(call.rows), kSelectThreads, 0,
                  stream, call, thresholds, rows_per_threshold);
  check_launched("select_above", shape);
}

void expand_pages(const PageLists& call, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", call.rows},
                       {"rows_per_sequence", call.rows_per_sequence},
                       {"page_capacity", call.page_capacity},
                       {"tokens", call.tokens},
                       {"capacity", call.capacity}});
  };
  require(call.tokens > 0 && call.rows_per_sequence > 0 && call.rows % call.rows_per_sequence == 0,
          "expand_pages", "rows must be whole sequences, pages not empty", shape);
  if (call.rows == 0 || call.capacity == 0) return;
  require(call.pages != nullptr && call.page_counts != nullptr && call.lengths != nullptr &&
              call.indices != nullptr && call.counts != nullptr,
          "expand_pages", "null pointer", shape);
  const dim3 grid{static_cast<unsigned>(call.rows),
                  static_cast<unsigned>(ceil_div<std::int64_t>(call.capacity, kSelectThreads)), 1};
  TRIPHASE_LAUNCH((expand_pages_kernel), grid, kSelectThreads, 0, stream, call);
  check_launched("expand_pages", shape);
}

}  // namespace triphase::cuda
