#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/sample_math.h"
#include "kernels/sizing/sample_workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// Here for their exp, which needs the processor's fused multiply-add to be fast.

void fill_weights(std::span<const float> logits, float best, double temperature, double* weights) {
  for (std::size_t id = 0; id < logits.size(); ++id) {
    weights[id] = sampling::weight_of(logits[id], best, temperature);
  }
}

// Ascending by id.
double sum_of_exp(std::span<const float> logits, float best) {
  double sum = 0.0;
  for (const float logit : logits) {
    sum += sampling::exp_at_most_one(static_cast<double>(logit) - static_cast<double>(best));
  }
  return sum;
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(fill_weights);
HWY_EXPORT(sum_of_exp);

constexpr std::size_t kLanes = 16;  // independent chains, so that the compiler can use vectors

struct Candidate {
  double weight;
  TokenId id;
};
static_assert(sizeof(Candidate) == 16);

struct RowScratch {
  float* logits;
  double* weights;
  Candidate* candidates;
};

bool all_finite(std::span<const float> values) {
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  // x * 0 is 0 for finite x and NaN otherwise; NaN survives the sum.
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane] * 0.0F;
  }
  float sum = 0.0F;
  for (; i < values.size(); ++i) sum += values[i] * 0.0F;
  for (const float lane : sums) sum += lane;
  return sum == 0.0F;
}

float maximum(std::span<const float> values) {
  std::array<float, kLanes> best;
  best.fill(values[0]);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = values[i + lane] > best[lane] ? values[i + lane] : best[lane];
    }
  }
  float result = *std::ranges::max_element(best);
  for (; i < values.size(); ++i) result = std::max(result, values[i]);
  return result;
}

TokenId first_of(std::span<const float> values, float value) {
  return static_cast<TokenId>(std::ranges::find(values, value) - values.begin());
}

// The likeliest `count` tokens of the unmodified distribution, kept in order as they are found.
void keep_alternatives(std::span<const float> logits, int count, SampleResult& result) {
  const auto wanted = static_cast<int>(std::min<std::int64_t>(count, std::ssize(logits)));
  int kept = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (kept == wanted && !(logit > result.logits[kept - 1])) continue;
    int place = kept < wanted ? kept++ : kept - 1;
    for (; place > 0 && logit > result.logits[place - 1]; --place) {
      result.logits[place] = result.logits[place - 1];
      result.ids[place] = result.ids[place - 1];
    }
    result.logits[place] = logit;
    result.ids[place] = static_cast<TokenId>(id);
  }
  result.count = kept;
}

void penalize_repetition(std::span<const float> logits, const SampleRow& row, float* to) {
  std::ranges::copy(logits, to);
  // Each token once however often it occurred.
  for (const TokenId id : row.history) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    to[id] = sampling::penalized(logits[static_cast<std::size_t>(id)], row.repetition_penalty);
  }
}

bool better(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

// How many of the best candidates reach a weight of `mass` together and have each at least min_p
// times the best one's. Sorts them, and only as much of a large vocabulary as it takes.
std::size_t sort_likeliest(std::span<Candidate> candidates, double mass, double min_p) {
  std::size_t sorted = 0;
  std::size_t kept = 0;
  double sum = 0.0;
  while (kept < candidates.size() && (kept == 0 || sum < mass)) {
    if (kept == sorted) {
      const std::size_t end = std::min(candidates.size(), std::max<std::size_t>(128, sorted * 8));
      std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(sorted),
                        candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(),
                        better);
      sorted = end;
    }
    if (kept > 0 && candidates[kept].weight < min_p * candidates.front().weight) break;
    sum += candidates[kept++].weight;
  }
  return kept;
}

// The place where `uniform` of all weight is used up; `weight(i)` of `count`.
template <class Weight>
std::size_t draw_place(std::size_t count, double uniform, const Weight& weight) {
  double total = 0.0;
  for (std::size_t i = 0; i < count; ++i) total += weight(i);
  double left = uniform * total;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weight(i);
    if (left < 0.0) return i;
  }
  // Rounding can leave a crumb: the last token with any weight takes it.
  for (std::size_t i = count; i-- > 0;) {
    if (weight(i) > 0.0) return i;
  }
  return 0;
}

TokenId draw(std::span<const float> logits, float best, const SampleRow& row,
             const RowScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(fill_weights)(logits, best, row.temperature, scratch.weights);
  const double uniform = sampling::uniform_draw(row.key, row.position);
  const bool few = row.top_k > 0 && row.top_k < std::ssize(logits);
  const bool likeliest = row.top_p < 1.0 || row.min_p > 0.0;
  if (!few && !likeliest) {
    return static_cast<TokenId>(
        draw_place(logits.size(), uniform, [&](std::size_t id) { return scratch.weights[id]; }));
  }
  std::span<Candidate> candidates(scratch.candidates, logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates[id] = {scratch.weights[id], static_cast<TokenId>(id)};
  }
  if (few) {
    std::nth_element(candidates.begin(), candidates.begin() + row.top_k, candidates.end(), better);
    candidates = candidates.first(static_cast<std::size_t>(row.top_k));
    // nth_element's order is the library's own, and a draw goes best first.
    std::sort(candidates.begin(), candidates.end(), better);
  }
  if (likeliest) {
    double total = 0.0;
    for (const Candidate& candidate : candidates) total += candidate.weight;
    candidates = candidates.first(sort_likeliest(candidates, row.top_p * total, row.min_p));
  }
  return candidates[draw_place(candidates.size(), uniform,
                               [&](std::size_t i) { return candidates[i].weight; })]
      .id;
}

void sample_row(std::span<const float> logits, const SampleRow& row, const RowScratch& scratch,
                SampleResult& result) {
  result.finite = all_finite(logits);
  if (!result.finite) return;
  const bool scored = row.score_token >= 0;
  std::span<const float> used = logits;
  if (!scored && row.repetition_penalty != 1.0) {
    penalize_repetition(logits, row, scratch.logits);
    used = {scratch.logits, logits.size()};
  }
  const float best = maximum(used);
  result.token = scored || row.temperature < sampling::kGreedyBelow
                     ? first_of(used, best)
                     : draw(used, best, row, scratch);
  if (!scored && row.alternatives < 0) return;
  result.peak = used.data() == logits.data() ? best : maximum(logits);
  result.exp_sum = HWY_DYNAMIC_DISPATCH(sum_of_exp)(logits, result.peak);
  result.logit = logits[static_cast<std::size_t>(scored ? row.score_token : result.token)];
  result.count = 0;
  if (!scored && row.alternatives > 0) keep_alternatives(logits, row.alternatives, result);
}

}  // namespace

void sample(ThreadPool& pool, ConstMatrix logits, std::span<const SampleRow> rows,
            SampleResult* results, Workspace workspace) {
  const SampleLayout layout = sample_layout(logits.cols);
  pool.parallel_for(std::ssize(rows), [&](std::int64_t at, int worker) {
    const SampleRow& row = rows[static_cast<std::size_t>(at)];
    std::byte* own = workspace.data + worker * layout.bytes;
    sample_row(
        {row_of<float>(logits.data, at, logits.row_stride), static_cast<std::size_t>(row.vocab)},
        row,
        {reinterpret_cast<float*>(own + layout.logits_at),
         reinterpret_cast<double*>(own + layout.weights_at),
         reinterpret_cast<Candidate*>(own + layout.candidates_at)},
        results[at]);
  });
}

}  // namespace triphase::cpu
#endif  // HWY_ONCE
