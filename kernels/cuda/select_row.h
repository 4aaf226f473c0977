#pragma once

// Selection of one row by a block of kThreads threads, from scores in global or shared memory: a
// radix search for the key that cuts, then an index-ordered compaction. Included by kernels only.

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/select_rows.h"

namespace triphase::cuda {

inline constexpr int kSelectThreads = 256;
inline constexpr int kSelectOwn =
    4;  // consecutive entries of a thread in one step of the compaction
// A 32-bit key in three digits, the highest first.
inline constexpr int kSelectDigits = 3;
inline constexpr int kSelectBins = 2048;

// Keys in the order of the scores; NaN below every number.
__device__ inline unsigned key_of(float score) {
  if (score != score) return 0U;
  const unsigned bits = float_bits(score == 0.0F ? 0.0F : score);  // -0 equals 0
  return (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
}

__device__ inline int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ inline int digit_bits(int digit) { return digit == 2 ? 10 : 11; }

// What is selected besides the forced entries: keys above `cut`, and the first `equals` of those
// equal to it.
struct SelectCut {
  unsigned key;
  unsigned equals;
};

struct SelectShared {
  unsigned* bins;     // kSelectBins
  unsigned* scratch;  // kBlockReduceWords
  unsigned* found;    // 2: bin, entries above it
};

// The cut that leaves exactly `wanted` of the first `end` entries, 0 < wanted < end. Each round
// counts one digit of the keys that agree with the digits found so far. Scores are an array,
// here and below, or what has a float for each index.
template <int kThreads = kSelectThreads, class Scores>
__device__ inline SelectCut find_cut(const Scores& scores, int end, unsigned wanted,
                                     const SelectShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned prefix = 0;
  for (int digit = 0; digit < kSelectDigits; ++digit) {
    const int shift = digit_shift(digit);
    const int bits = digit_bits(digit);
    for (int bin = thread; bin < kSelectBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    for (int t = thread; t < end; t += kThreads) {
      const unsigned key = key_of(scores[t]);
      const bool agrees = digit == 0 || key >> (shift + bits) == prefix;
      if (agrees) atomic_add(&shared.bins[(key >> shift) & ((1U << bits) - 1U)], 1U);
    }
    __syncthreads();
    // A thread's bins, from the highest bin down; exactly one of all holds the wanted-th entry.
    constexpr int kOwnBins = kSelectBins / kThreads;
    unsigned own = 0;
    for (int i = 0; i < kOwnBins; ++i)
      own += shared.bins[kSelectBins - 1 - (thread * kOwnBins + i)];
    unsigned total = 0;
    unsigned above = block_scan(own, shared.scratch, total);
    for (int i = 0; i < kOwnBins; ++i) {
      const int bin = kSelectBins - 1 - (thread * kOwnBins + i);
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

struct SelectRange {
  int length;
  int end;  // of the entries that compete
};

__device__ inline SelectRange select_range(const SelectRows& call) {
  const std::int64_t sequence = blockIdx.x / call.rows_per_sequence;
  const int length = call.lengths[sequence];
  const std::int64_t local = call.locals == nullptr ? call.local : call.locals[sequence];
  return {length, static_cast<int>(larger<std::int64_t>(0, length - local))};
}

// How many entries of this block's row select_top keeps; `k` where all rows keep as many.
__device__ inline int selected_entries(const SelectRows& call, int k) {
  return call.ks == nullptr ? k : call.ks[blockIdx.x / call.rows_per_sequence];
}

// Calls output.write(i, entry, place) for the selected entries, in order; place counts them. A
// thread's entries of a chunk, i of kSelectOwn, have been announced by output.read(i, entry) before
// any of the chunk is written. Counts of a chunk are packed into one scan, those certainly selected
// in the low half and those equal to the cut in the high half. Returns how many were selected.
template <int kThreads = kSelectThreads, class Scores, class Output>
__device__ inline unsigned compact_selected(const Scores& scores, SelectRange range, SelectCut cut,
                                            unsigned* scratch, Output& output) {
  unsigned sure_before = 0;
  unsigned equal_before = 0;
  for (int chunk = 0; chunk < range.length; chunk += kThreads * kSelectOwn) {
    const int first = chunk + static_cast<int>(threadIdx.x) * kSelectOwn;
    unsigned sure = 0;   // bit i: entry first + i is selected whatever comes before it
    unsigned equal = 0;  // bit i: it equals the cut
    TRIPHASE_UNROLL
    for (int i = 0; i < kSelectOwn; ++i) {
      const int t = first + i;
      if (t >= range.length) continue;
      output.read(i, t);
      if (t >= range.end) {
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
    for (int i = 0; i < kSelectOwn; ++i) {
      const bool is_sure = (sure >> i & 1U) != 0U;
      const bool is_equal = (equal >> i & 1U) != 0U;
      if (is_sure || (is_equal && equal_rank < cut.equals)) {
        output.write(i, first + i, sure_rank + smaller(equal_rank, cut.equals));
      }
      sure_rank += static_cast<unsigned>(is_sure);
      equal_rank += static_cast<unsigned>(is_equal);
    }
    sure_before += total & 0xFFFFU;
    equal_before += total >> 16;
  }
  return sure_before + smaller(equal_before, cut.equals);
}

struct SelectedIndices {
  std::int32_t* to;
  std::int64_t capacity;

  __device__ void read(int, int) {}
  __device__ void write(int, int entry, unsigned place) {
    device_check(place < static_cast<unsigned>(capacity));
    to[place] = entry;
  }
};

// Writes the selected indices in order.
__device__ inline void write_selected(const SelectRows& call, const float* scores,
                                      SelectRange range, SelectCut cut, unsigned* scratch) {
  SelectedIndices indices{call.indices + blockIdx.x * call.capacity, call.capacity};
  const unsigned count = compact_selected(scores, range, cut, scratch, indices);
  if (threadIdx.x == 0) call.counts[blockIdx.x] = static_cast<std::int32_t>(count);
}

// The cut of the best k entries in all, the forced ones counted.
template <class Scores>
__device__ inline SelectCut find_top_cut(const Scores& scores, SelectRange range, int k,
                                         const SelectShared& shared) {
  const int free = k - (range.length - range.end);
  // Every key is at least 0: "equal to 0 or above" without a limit is all, a limit of 0 is none.
  SelectCut cut{0xFFFFFFFFU, 0};
  if (free >= range.end) {
    cut = {0, 0xFFFFFFFFU};
  } else if (free > 0) {
    cut = find_cut(scores, range.end, static_cast<unsigned>(free), shared);
  }
  return cut;
}

}  // namespace triphase::cuda
