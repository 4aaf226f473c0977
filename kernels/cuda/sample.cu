// A block walks its row a dozen times, from L2 mostly, instead of sorting it. What a filter keeps
// is a cut in the order of the logits (best first, ties by id), and so is the drawn token: each is
// found by a radix search over keys, one digit of the key per walk, that adds up counts or weights
// by bin. Weights are whole numbers (fixed_point), so that the sums are exact.

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/sample.h"
#include "kernels/sample_math.h"

namespace triphase::cuda {
namespace {

// What atomic_add takes.
using Word = unsigned long long;
static_assert(sizeof(Word) == sizeof(std::uint64_t));

constexpr int kThreads = 512;
constexpr int kBins = 2048;
constexpr int kOwnBins = kBins / kThreads;
constexpr int kDigits = 3;  // of a 32-bit key, the highest first

__device__ inline int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ inline int digit_bits(int digit) { return digit == 2 ? 10 : 11; }

struct Shared {
  Word* bins;            // kBins
  Word* words;           // kBlockReduceWords
  double* doubles;       // kBlockReduceWords
  float* floats;         // kBlockReduceWords
  unsigned* unsigneds;   // kBlockReduceWords
  Word* found;           // 2: bin, sum before it
  std::int32_t* chosen;  // kMaxAlternatives ids
};

// A row after the repetition penalty, or as it is (seen null).
struct Row {
  const float* logits;
  const std::uint32_t* seen;
  double penalty;
  int vocab;

  __device__ float at(int id) const {
    const float logit = logits[id];
    const auto place = static_cast<unsigned>(id);
    if (seen == nullptr || (seen[place / 32] >> (place % 32) & 1U) == 0U) return logit;
    return sampling::penalized(logit, penalty);
  }
};

// The tokens that filters left: keys above `key`, and the first `equals` of those equal to it.
struct Cut {
  unsigned key;
  unsigned equals;
};

// The place in the order where sums reach a target: a key, and the sum of the keys above it.
struct Place {
  unsigned key;
  Word above;
};

// The largest logit, ties to the lower id; -1 when a logit is NaN or infinite.
__device__ inline int likeliest(const Row& row, Word* scratch) {
  constexpr Word kNoNumber = 0xFFFFFFFFU;  // above every number's key
  Word best = 0;
  TRIPHASE_UNROLL_BY(4)
  for (int id = static_cast<int>(threadIdx.x); id < row.vocab; id += kThreads) {
    const Word key =
        sampling::is_finite(row.logits[id]) ? Word{sampling::order_key(row.at(id))} : kNoNumber;
    best = larger(best, key << 32 | (0xFFFFFFFFU - static_cast<unsigned>(id)));
  }
  best = block_reduce(best, scratch, Word{0}, [](Word a, Word b) { return larger(a, b); });
  if (best >> 32 == kNoNumber) return -1;
  return static_cast<int>(0xFFFFFFFFU - static_cast<unsigned>(best & 0xFFFFFFFFU));
}

__device__ inline double sum_of_exp(const Row& raw, float peak, double* scratch) {
  double sum = 0.0;
  for (int id = static_cast<int>(threadIdx.x); id < raw.vocab; id += kThreads) {
    sum = sampling::add(sum, sampling::exp_at_most_one(sampling::add(
                                 static_cast<double>(raw.logits[id]), -static_cast<double>(peak))));
  }
  return block_reduce(sum, scratch, 0.0, [](double a, double b) { return sampling::add(a, b); });
}

// Weights of one row's tokens as whole numbers.
struct Weights {
  float best;
  double temperature;
  double scale;
  double least;  // weights below it count nothing

  __device__ Word of(float logit) const {
    const double weight = sampling::weight_of(logit, best, temperature);
    return weight < least ? 0 : sampling::fixed_point(weight, scale);
  }
  __device__ Word of_key(unsigned key) const { return of(sampling::logit_of_key(key)); }
};

// About the sum of the weights, to choose their scale by.
__device__ inline float rough_sum(const Row& row, float best, double temperature, float* scratch) {
  const auto factor = static_cast<float>(1.4426950408889634 / temperature);
  float sum = 0.0F;
  TRIPHASE_UNROLL_BY(4)
  for (int id = static_cast<int>(threadIdx.x); id < row.vocab; id += kThreads) {
    sum += exp2_fast(mul_rn(sub_rn(row.at(id), best), factor));
  }
  return block_sum(sum, scratch);
}

// The bin, in ascending order, in which the sums reach `target`, and the sum before it, in
// shared.found. `total` is the sum of all bins; nothing is found when it is less than the target.
template <class Target>
__device__ inline Word find_bin(const Shared& shared, const Target& target, Word& total) {
  const int first = static_cast<int>(threadIdx.x) * kOwnBins;
  Word own = 0;
  for (int i = 0; i < kOwnBins; ++i) own += shared.bins[first + i];
  Word before = block_scan(own, shared.words, total);
  const Word wanted = target(total);
  for (int i = 0; i < kOwnBins; ++i) {
    const Word sum = shared.bins[first + i];
    if (before < wanted && wanted <= before + sum) {
      shared.found[0] = static_cast<Word>(first + i);
      shared.found[1] = before;
    }
    before += sum;
  }
  __syncthreads();
  return wanted;
}

__device__ inline void clear_bins(const Shared& shared) {
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) shared.bins[bin] = 0;
  __syncthreads();
}

// Walks down from the best token through the keys above `floor` until the values, `value(logit)`
// each, reach target(their sum). Returns floor and the whole sum when they do not.
template <class Value, class Target>
__device__ inline Place descend(const Row& row, unsigned floor, const Value& value,
                                const Target& target, const Shared& shared) {
  unsigned prefix = 0;
  Word above = 0;
  Word wanted = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = digit_shift(digit);
    const int bits = digit_bits(digit);
    clear_bins(shared);
    for (int id = static_cast<int>(threadIdx.x); id < row.vocab; id += kThreads) {
      const float logit = row.at(id);
      const unsigned key = sampling::order_key(logit);
      if (key <= floor || (digit > 0 && key >> (shift + bits) != prefix)) continue;
      const Word what = value(logit);
      // Bins from the highest key down.
      const unsigned bin = kBins - 1 - (key >> shift & ((1U << bits) - 1U));
      if (what != 0) atomic_add(&shared.bins[bin], what);
    }
    __syncthreads();
    Word total = 0;
    if (digit == 0) {
      wanted = find_bin(shared, target, total);
      if (wanted > total) return {floor, total};
    } else {
      (void)find_bin(
          shared, [wanted](Word) { return wanted; }, total);
    }
    prefix = prefix << bits | (kBins - 1 - static_cast<unsigned>(shared.found[0]));
    wanted -= shared.found[1];
    above += shared.found[1];
    __syncthreads();
  }
  return {prefix, above};
}

// The ids of tokens with this key, in order: the ones with rank `first` to first + count - 1, into
// shared.chosen from `to` on.
__device__ inline void choose_equals(const Row& row, unsigned key, Word first, unsigned count,
                                     unsigned to, const Shared& shared) {
  unsigned before = 0;
  for (int chunk = 0; chunk < row.vocab && before < first + count; chunk += kThreads) {
    const int id = chunk + static_cast<int>(threadIdx.x);
    const bool equal = id < row.vocab && sampling::order_key(row.at(id)) == key;
    unsigned total = 0;
    const unsigned rank =
        before + block_scan(static_cast<unsigned>(equal), shared.unsigneds, total);
    if (equal && rank >= first && rank < first + count) shared.chosen[to + rank - first] = id;
    before += total;
  }
  __syncthreads();
}

// The best `count` tokens of at least so many.
__device__ inline Cut cut_by_count(const Row& row, unsigned count, const Shared& shared) {
  const Place place = descend(
      row, 0U, [](float) { return Word{1}; }, [count](Word) { return Word{count}; }, shared);
  return {place.key, static_cast<unsigned>(count - place.above)};
}

// The best tokens of `cut` that together have top_p of its weight.
__device__ inline Cut cut_by_mass(const Row& row, Cut cut, const SampleTask& task,
                                  const Weights& weights, const Shared& shared) {
  const Word rest = cut.equals == 0 ? 0 : weights.of_key(cut.key) * cut.equals;
  const auto mass = [&task, rest](Word total) {
    const Word all = total + rest;
    const double share = sampling::multiply(task.top_p, static_cast<double>(all));
    // Whole numbers above 2^53 are doubles without a fraction, so nothing is lost in the cast.
    const auto whole = static_cast<Word>(share);
    const Word up = static_cast<double>(whole) < share ? whole + 1 : whole;
    return larger(Word{1}, smaller(up, all));
  };
  Word wanted = 0;
  const Place place = descend(
      row, cut.key, [&weights](float logit) { return weights.of(logit); },
      [&](Word total) { return wanted = mass(total); }, shared);
  const Word each = weights.of_key(place.key);
  if (each == 0) return cut;  // no weight at all: nothing to choose by
  const Word equals = (wanted - place.above + each - 1) / each;
  return {place.key, static_cast<unsigned>(equals)};
}

// The drawn token is the first with which the weights reach so much.
__device__ inline Word wanted_of(Word total, const SampleTask& task) {
  return sampling::scaled_down(total, sampling::uniform_bits(task.key, task.position)) + 1;
}

// Draws from the tokens in `cut`, best first; `fallback` where none has any weight.
__device__ inline int draw_by_order(const Row& row, Cut cut, const SampleTask& task,
                                    const Weights& weights, int fallback, const Shared& shared) {
  const Word rest = cut.equals == 0 ? 0 : weights.of_key(cut.key) * cut.equals;
  Word wanted = 0;
  const Place place = descend(
      row, cut.key, [&weights](float logit) { return weights.of(logit); },
      [&](Word total) { return wanted = wanted_of(total + rest, task); }, shared);
  const Word each = weights.of_key(place.key);
  if (each == 0) return fallback;
  choose_equals(row, place.key, (wanted - 1 - place.above) / each, 1, 0, shared);
  return shared.chosen[0];
}

// Draws from all tokens, by id: bins of neighbours first, then one bin's tokens.
__device__ inline int draw_by_id(const Row& row, const SampleTask& task, const Weights& weights,
                                 int fallback, const Shared& shared) {
  const int width = ceil_div(ceil_div(row.vocab, kBins), kWarpSize) * kWarpSize;
  clear_bins(shared);
  const int warp = uniform_warp_id();
  for (int group = warp * kWarpSize; group < row.vocab; group += kThreads) {
    const int id = group + lane_id();
    const Word sum = warp_sum(id < row.vocab ? weights.of(row.at(id)) : Word{0});
    if (lane_id() == 0) atomic_add(&shared.bins[group / width], sum);
  }
  __syncthreads();
  Word total = 0;
  const Word wanted = find_bin(
      shared, [&task](Word all) { return wanted_of(all, task); }, total);
  if (wanted > total) return fallback;
  const int begin = static_cast<int>(shared.found[0]) * width;
  Word before = shared.found[1];
  for (int chunk = begin; chunk < smaller(begin + width, row.vocab); chunk += kThreads) {
    const int id = chunk + static_cast<int>(threadIdx.x);
    const bool mine = id < smaller(begin + width, row.vocab);
    const Word weight = mine ? weights.of(row.at(id)) : Word{0};
    const Word own = before + block_scan(weight, shared.words, total);
    if (own < wanted && wanted <= own + weight) shared.chosen[0] = id;
    before += total;
  }
  __syncthreads();
  return shared.chosen[0];
}

__device__ inline int draw(const Row& row, const SampleTask& task, int best_id,
                           const Shared& shared) {
  const float best = row.at(best_id);
  const float sum = rough_sum(row, best, task.temperature, shared.floats);
  Weights weights{best, task.temperature, sampling::fixed_point_scale(sum), 0.0};
  const bool few = task.top_k > 0 && task.top_k < row.vocab;
  if (!few && task.top_p >= 1.0 && task.min_p <= 0.0) {
    return draw_by_id(row, task, weights, best_id, shared);
  }
  Cut cut{0, 0};  // every key is above 0
  if (few) cut = cut_by_count(row, static_cast<unsigned>(task.top_k), shared);
  if (task.top_p < 1.0) cut = cut_by_mass(row, cut, task, weights, shared);
  weights.least = task.min_p;
  return draw_by_order(row, cut, task, weights, best_id, shared);
}

// The likeliest tokens, best first, ties by id.
__device__ inline void write_alternatives(const Row& raw, unsigned wanted, SampleResult& result,
                                          const Shared& shared) {
  const unsigned count = smaller(wanted, static_cast<unsigned>(raw.vocab));
  Cut cut{0, 0};
  if (count < static_cast<unsigned>(raw.vocab)) cut = cut_by_count(raw, count, shared);
  if (threadIdx.x == 0) shared.unsigneds[0] = 0;
  __syncthreads();
  for (int id = static_cast<int>(threadIdx.x); id < raw.vocab; id += kThreads) {
    if (sampling::order_key(raw.logits[id]) > cut.key) {
      shared.chosen[atomic_add(&shared.unsigneds[0], 1U)] = id;
    }
  }
  __syncthreads();
  if (cut.equals > 0) choose_equals(raw, cut.key, 0, cut.equals, count - cut.equals, shared);
  if (threadIdx.x < count) {
    const int id = shared.chosen[threadIdx.x];
    const unsigned key = sampling::order_key(raw.logits[id]);
    unsigned rank = 0;
    for (unsigned other = 0; other < count; ++other) {
      const int other_id = shared.chosen[other];
      const unsigned other_key = sampling::order_key(raw.logits[other_id]);
      rank += static_cast<unsigned>(other_key > key || (other_key == key && other_id < id));
    }
    result.ids[rank] = id;
    result.logits[rank] = raw.logits[id];
  }
  if (threadIdx.x == 0) result.count = static_cast<std::int32_t>(count);
}

__global__ void __launch_bounds__(kThreads) sample_rows_kernel(SampleRows call) {
  TRIPHASE_SHARED(Word, bins, kBins);
  TRIPHASE_SHARED(Word, words, kBlockReduceWords);
  TRIPHASE_SHARED(double, doubles, kBlockReduceWords);
  TRIPHASE_SHARED(float, floats, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, unsigneds, kBlockReduceWords);
  TRIPHASE_SHARED(Word, found, 2);
  TRIPHASE_SHARED(std::int32_t, chosen, kMaxAlternatives);
  const Shared shared{bins, words, doubles, floats, unsigneds, found, chosen};
  const SampleTask& task = call.tasks[blockIdx.x];
  SampleResult& result = call.results[blockIdx.x];
  const float* logits = call.logits + blockIdx.x * call.stride;
  const Row raw{logits, nullptr, 1.0, task.vocab};
  const Row row{logits, task.seen, task.repetition_penalty, task.vocab};
  const int best_id = likeliest(row, words);
  if (threadIdx.x == 0) {
    result.finite = best_id >= 0;
    result.token = 0;  // until it is drawn: who embeds it asks no further
    result.count = 0;
  }
  if (best_id < 0) return;
  const bool scored = task.score_token >= 0;
  int token = best_id;
  if (!scored && task.temperature >= sampling::kGreedyBelow) {
    token = draw(row, task, best_id, shared);
  }
  if (threadIdx.x == 0) result.token = token;
  if (!scored && task.alternatives < 0) return;
  const float peak = logits[task.seen == nullptr ? best_id : likeliest(raw, words)];
  const double exp_sum = sum_of_exp(raw, peak, doubles);
  if (threadIdx.x == 0) {
    result.logit = logits[scored ? task.score_token : token];
    result.peak = peak;
    result.exp_sum = exp_sum;
  }
  if (!scored && task.alternatives > 0) {
    write_alternatives(raw, static_cast<unsigned>(task.alternatives), result, shared);
  }
}

}  // namespace

void sample_rows(const SampleRows& call, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"rows", call.rows}, {"stride", call.stride}}); };
  require(call.rows >= 0 && call.stride >= 0, "sample_rows", "sizes must not be negative", shape);
  if (call.rows == 0) return;
  require(call.logits != nullptr && call.tasks != nullptr && call.results != nullptr, "sample_rows",
          "null pointer", shape);
  TRIPHASE_LAUNCH((sample_rows_kernel), static_cast<unsigned>(call.rows), kThreads, 0, stream,
                  call);
  check_launched("sample_rows", shape);
}

}  // namespace triphase::cuda
