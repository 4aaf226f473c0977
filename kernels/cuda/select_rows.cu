#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/select_rows.h"
#include "runtime/base/error.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOwn = 4;  // consecutive entries of a thread in one step of the compaction
constexpr int kChunk = kThreads * kOwn;
// A 32-bit key in three digits, the highest first.
constexpr int kDigits = 3;
constexpr int kBins = 2048;

// Keys in the order of the scores; NaN below every number.
__device__ inline unsigned key_of(float score) {
  if (score != score) return 0U;
  const unsigned bits = float_bits(score == 0.0F ? 0.0F : score);  // -0 equals 0
  return (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
}

__device__ inline int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ inline int digit_bits(int digit) { return digit == 2 ? 10 : 11; }

// What is selected besides the forced ranges: keys above `cut`, and the first `equals` of those
// equal to it.
struct Cut {
  unsigned key;
  unsigned equals;
};

struct Shared {
  unsigned* bins;     // kBins
  unsigned* scratch;  // kBlockReduceWords
  unsigned* found;    // 2: bin, entries above it
};

// The cut that leaves exactly `wanted` of the entries [begin, end), 0 < wanted < end - begin. Each
// round counts one digit of the keys that agree with the digits found so far.
__device__ inline Cut find_cut(const float* scores, int begin, int end, unsigned wanted,
                               const Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned prefix = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = digit_shift(digit);
    const int bits = digit_bits(digit);
    for (int bin = thread; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    for (int t = begin + thread; t < end; t += kThreads) {
      const unsigned key = key_of(scores[t]);
      const bool agrees = digit == 0 || key >> (shift + bits) == prefix;
      if (agrees) atomic_add(&shared.bins[(key >> shift) & ((1U << bits) - 1U)], 1U);
    }
    __syncthreads();
    // A thread's bins, from the highest bin down; exactly one of all holds the wanted-th entry.
    constexpr int kOwnBins = kBins / kThreads;
    unsigned own = 0;
    for (int i = 0; i < kOwnBins; ++i) own += shared.bins[kBins - 1 - (thread * kOwnBins + i)];
    unsigned total = 0;
    unsigned above = block_scan(own, shared.scratch, total);
    for (int i = 0; i < kOwnBins; ++i) {
      const int bin = kBins - 1 - (thread * kOwnBins + i);
      const unsigned count = shared.bins[bin];
      if (above < wanted && wanted <= above + count) {
        shared.found[0] = static_cast<unsigned>(bin);
        shared.found[1] = above;
      }
      above += count;
    }
    __syncthreads();
    prefix = (prefix << bits) | shared.found[0];
    wanted -= shared.found[1];
    __syncthreads();
  }
  return {prefix, wanted};
}

struct RowRange {
  int length;
  int begin;  // of the entries that compete
  int end;
};

__device__ inline RowRange row_range(const SelectRows& call) {
  const int length = call.lengths[blockIdx.x / call.rows_per_sequence];
  const int begin = static_cast<int>(smaller<std::int64_t>(call.sinks, length));
  const int end = larger(begin, static_cast<int>(larger<std::int64_t>(0, length - call.local)));
  return {length, begin, end};
}

// Writes the selected indices in order: counts of a chunk packed into one scan, those certainly
// selected in the low half and those equal to the cut in the high half.
__device__ inline void write_selected(const SelectRows& call, const float* scores, RowRange range,
                                      Cut cut, unsigned* scratch) {
  std::int32_t* out = call.indices + blockIdx.x * call.capacity;
  unsigned sure_before = 0;
  unsigned equal_before = 0;
  for (int chunk = 0; chunk < range.length; chunk += kChunk) {
    const int first = chunk + static_cast<int>(threadIdx.x) * kOwn;
    unsigned sure = 0;   // bit i: entry first + i is selected whatever comes before it
    unsigned equal = 0;  // bit i: it equals the cut
    TRIPHASE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int t = first + i;
      if (t >= range.length) continue;
      if (t < range.begin || t >= range.end) {
        sure |= 1U << i;
        continue;
      }
      const unsigned key = key_of(scores[t]);
      sure |= static_cast<unsigned>(key > cut.key) << i;
      equal |= static_cast<unsigned>(key == cut.key) << i;
    }
    unsigned total = 0;
    const unsigned before = block_scan(
        static_cast<unsigned>(count_bits(sure)) + (static_cast<unsigned>(count_bits(equal)) << 16),
        scratch, total);
    unsigned sure_rank = sure_before + (before & 0xFFFFU);
    unsigned equal_rank = equal_before + (before >> 16);
    TRIPHASE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const bool is_sure = (sure >> i & 1U) != 0U;
      const bool is_equal = (equal >> i & 1U) != 0U;
      if (is_sure || (is_equal && equal_rank < cut.equals)) {
        const unsigned place = sure_rank + smaller(equal_rank, cut.equals);
        device_check(place < static_cast<unsigned>(call.capacity));
        out[place] = first + i;
      }
      sure_rank += static_cast<unsigned>(is_sure);
      equal_rank += static_cast<unsigned>(is_equal);
    }
    sure_before += total & 0xFFFFU;
    equal_before += total >> 16;
  }
  if (threadIdx.x == 0) {
    call.counts[blockIdx.x] =
        static_cast<std::int32_t>(sure_before + smaller(equal_before, cut.equals));
  }
}

__global__ void __launch_bounds__(kThreads) select_top_kernel(SelectRows call, int k) {
  TRIPHASE_SHARED(unsigned, bins, kBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const RowRange range = row_range(call);
  const float* scores = call.scores + blockIdx.x * call.score_stride;
  const int competing = range.end - range.begin;
  const int free = k - (range.length - competing);
  // Every key is at least 0: "equal to 0 or above" without a limit is all, a limit of 0 is none.
  Cut cut{0xFFFFFFFFU, 0};
  if (free >= competing) {
    cut = {0, 0xFFFFFFFFU};
  } else if (free > 0) {
    cut = find_cut(scores, range.begin, range.end, static_cast<unsigned>(free),
                   {bins, scratch, found});
  }
  write_selected(call, scores, range, cut, scratch);
}

__global__ void __launch_bounds__(kThreads)
    select_above_kernel(SelectRows call, const float* thresholds, std::int64_t rows_per_threshold) {
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const RowRange range = row_range(call);
  const Cut cut{key_of(thresholds[blockIdx.x / rows_per_threshold]), 0xFFFFFFFFU};
  write_selected(call, call.scores + blockIdx.x * call.score_stride, range, cut, scratch);
}

void check_call(const SelectRows& call, std::string_view kernel) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  TRIPHASE_CHECK(call.scores != nullptr && call.lengths != nullptr && call.indices != nullptr &&
                     call.counts != nullptr && call.rows_per_sequence > 0 &&
                     call.rows % call.rows_per_sequence == 0 && call.max_length < kLargest &&
                     call.score_stride >= call.max_length && call.sinks >= 0 && call.local >= 0,
                 std::string(kernel) + ": shapes");
}

std::string shape_text(const SelectRows& call) {
  return std::to_string(call.rows) + " rows of up to " + std::to_string(call.max_length);
}

}  // namespace

void select_top(const SelectRows& call, std::int64_t k, StreamHandle stream) {
  check_call(call, "select_top");
  const std::int64_t most = smaller(call.max_length, larger(k, call.sinks + call.local));
  TRIPHASE_CHECK(k >= 0 && call.capacity >= most, "select_top: capacity below k");
  if (call.rows == 0) return;
  const auto wanted = static_cast<int>(smaller(k, std::int64_t{1} << 30));
  TRIPHASE_LAUNCH((select_top_kernel), static_cast<unsigned>(call.rows), kThreads, 0, stream, call,
                  wanted);
  check_launched("select_top", [&] { return shape_text(call) + ", k " + std::to_string(k); });
}

void select_above(const SelectRows& call, const float* thresholds, std::int64_t rows_per_threshold,
                  StreamHandle stream) {
  check_call(call, "select_above");
  TRIPHASE_CHECK(
      thresholds != nullptr && rows_per_threshold > 0 && call.capacity >= call.max_length,
      "select_above: a threshold may keep every entry");
  if (call.rows == 0) return;
  TRIPHASE_LAUNCH((select_above_kernel), static_cast<unsigned>(call.rows), kThreads, 0, stream,
                  call, thresholds, rows_per_threshold);
  check_launched("select_above", [&] { return shape_text(call); });
}

}  // namespace triphase::cuda
