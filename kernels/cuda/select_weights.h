#pragma once

// Selection of one row's heaviest tokens by a block of kSelectThreads threads or twice as many,
// from weights in shared memory that the block has counted by weight_bin. One histogram finds the
// bin that cuts; the tokens in it are ranked one by one. Chooses what select_row.h chooses.
// Included by kernels only.

#include "kernels/cuda/select_row.h"

namespace triphase::cuda {

// Tokens in the bin that cuts, at most; with more, digits of the keys decide (find_cut).
inline constexpr int kSelectCandidates = kSelectThreads;  // each has a thread
// A bit per token in the histogram's place.
inline constexpr int kSelectWeightTokens = kSelectBins * 32;
inline constexpr int kSelectWordTokens = 16;  // that a thread writes in order

// Bins of weights, 64 of each octave below 2^4. What is lighter than 2^-28 is in bin 0, like NaN.
__device__ inline int weight_bin(float weight) {
  constexpr float kLightest = 3.7252903e-9F;  // 2^-28
  const int above =
      static_cast<int>(float_bits(largest(weight, kLightest)) - float_bits(kLightest));
  return smaller(above >> 17, kSelectBins - 1);
}

struct WeightShared {
  unsigned* bins;    // kSelectBins: how many competing tokens each holds
  unsigned* keys;    // kSelectCandidates
  int* tokens;       // kSelectCandidates
  unsigned* scan;    // kBlockReduceWords
  unsigned* found;   // 3
  unsigned* listed;  // 1, zero
};

// Tokens of heavier bins are selected, and `wanted` of the `count` tokens in this one.
struct WeightCut {
  int bin;
  unsigned wanted;
  unsigned count;
};

// The bin that holds the wanted-th of all counted tokens, from the heaviest on.
template <int kThreads>
__device__ inline WeightCut find_weight_cut(unsigned wanted, const WeightShared& shared) {
  constexpr int kOwnBins = kSelectBins / kThreads;
  static_assert(kOwnBins % 4 == 0, "vectors");
  const int first = kSelectBins - kOwnBins * (static_cast<int>(threadIdx.x) + 1);
  unsigned count[kOwnBins];
  unsigned own = 0;
  TRIPHASE_UNROLL
  for (int i = 0; i < kOwnBins; i += 4) {
    const uint4 four = load_shared16(shared.bins + first + i);
    count[i] = four.x;
    count[i + 1] = four.y;
    count[i + 2] = four.z;
    count[i + 3] = four.w;
    own += four.x + four.y + four.z + four.w;
  }
  unsigned total = 0;
  unsigned above = block_scan(own, shared.scan, total);
  if (above < wanted && wanted <= above + own) {
    TRIPHASE_UNROLL
    for (int i = kOwnBins - 1; i >= 0; --i) {
      if (above < wanted && wanted <= above + count[i]) {
        shared.found[0] = static_cast<unsigned>(first + i);
        shared.found[1] = above;
        shared.found[2] = count[i];
      }
      above += count[i];
    }
  }
  __syncthreads();
  return {static_cast<int>(shared.found[0]), wanted - shared.found[1], shared.found[2]};
}

// Sets the bits of forced tokens and of those in heavier bins; lists the others in the cut's bin.
template <int kThreads>
__device__ inline void mark_weights(const float* weights, SelectRange range, int cut_bin,
                                    const WeightShared& shared) {
  constexpr int kOwn = 4;  // words of a round: their reads come first
  constexpr int kRound = kOwn * kThreads / kWarpSize;
  for (int first = kOwn * uniform_warp_id(); first * kWarpSize < range.length; first += kRound) {
    float weight[kOwn];
    TRIPHASE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      weight[i] = weights[smaller((first + i) * kWarpSize + lane_id(), range.length - 1)];
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int token = (first + i) * kWarpSize + lane_id();
      const bool there = token < range.length;
      const bool forced = token >= range.end;
      const int bin = weight_bin(weight[i]);
      if (there && !forced && bin == cut_bin) {
        const unsigned at = atomic_add(shared.listed, 1U);
        shared.keys[at] = key_of(weight[i]);
        shared.tokens[at] = token;
      }
      const unsigned bits = ballot(there && (forced || bin > cut_bin));
      if (lane_id() == 0 && (first + i) * kWarpSize < range.length) shared.bins[first + i] = bits;
    }
  }
  __syncthreads();
}

// Sets the bits of the best `wanted` listed tokens, ties to the smallest.
__device__ inline void mark_listed(const WeightCut& cut, const WeightShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = static_cast<int>(cut.count);
  if (thread < count) {
    const unsigned key = shared.keys[thread];
    const int token = shared.tokens[thread];
    unsigned better = 0;
    for (int other = 0; other < count; ++other) {
      const unsigned their = shared.keys[other];
      better +=
          static_cast<unsigned>(their > key || (their == key && shared.tokens[other] < token));
    }
    if (better < cut.wanted) atomic_or(&shared.bins[token / kWarpSize], 1U << token % kWarpSize);
  }
  __syncthreads();
}

// As select_top: the best k tokens, the forced ones counted. Output and result as in
// compact_selected.
template <int kThreads, class Output>
__device__ inline unsigned select_weights(const float* weights, SelectRange range, int k,
                                          const WeightShared& shared, Output& output) {
  const int free = k - (range.length - range.end);
  WeightCut cut{free >= range.end ? -1 : kSelectBins, 0, 0};  // all or none of those that compete
  if (free > 0 && free < range.end) {
    cut = find_weight_cut<kThreads>(static_cast<unsigned>(free), shared);
    if (cut.count > kSelectCandidates) {
      const SelectShared digits{shared.bins, shared.scan, shared.found};
      const SelectCut exact =
          find_cut<kThreads>(weights, range.end, static_cast<unsigned>(free), digits);
      return compact_selected<kThreads>(weights, range, exact, shared.scan, output);
    }
  }
  mark_weights<kThreads>(weights, range, cut.bin, shared);
  mark_listed(cut, shared);
  unsigned before = 0;
  for (int chunk = 0; chunk < range.length; chunk += kThreads * kSelectWordTokens) {
    const int first = chunk + static_cast<int>(threadIdx.x) * kSelectWordTokens;
    unsigned bits = 0;
    if (first < range.length) bits = shared.bins[first / 32] >> first % 32 & 0xFFFFU;
    unsigned total = 0;
    unsigned place =
        before + block_scan(static_cast<unsigned>(count_bits(bits)), shared.scan, total);
    for (; bits != 0; bits &= bits - 1) output.write(0, first + first_bit(bits), place++);
    before += total;
  }
  return before;
}

}  // namespace triphase::cuda
