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

std::string shape_of(const SelectRows& call) {
  return shape_text({{"rows", call.rows},
                     {"rows_per_sequence", call.rows_per_sequence},
                     {"max_length", call.max_length},
                     {"score_stride", call.score_stride},
                     {"local", call.local},
                     {"capacity", call.capacity}});
}

void check_call(const SelectRows& call) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const LaunchCheck check("select_top", [&] { return shape_of(call); });
  check(call.rows_per_sequence > 0 && call.rows % call.rows_per_sequence == 0,
        "rows must be whole sequences");
  check(call.max_length < kLargest && call.score_stride >= call.max_length,
        "score_stride below the longest row");
  check(call.local >= 0, "local must not be negative");
  check(call.scores != nullptr && call.lengths != nullptr && call.indices != nullptr &&
            call.counts != nullptr,
        "null pointer");
}

}  // namespace

void select_top(const SelectRows& call, std::int64_t k, StreamHandle stream) {
  check_call(call);
  const auto shape = [&] { return shape_of(call) + ", " + shape_text({{"k", k}}); };
  const std::int64_t most = smaller(call.max_length, larger(k, call.local));
  require(k >= 0 && call.capacity >= most, "select_top", "capacity below k", shape);
  if (call.rows == 0) return;
  const auto wanted = static_cast<int>(smaller(k, std::int64_t{1} << 30));
  TRIPHASE_LAUNCH((select_top_kernel), static_cast<unsigned>(call.rows), kSelectThreads, 0, stream,
                  call, wanted);
  check_launched("select_top", shape);
}

}  // namespace triphase::cuda
