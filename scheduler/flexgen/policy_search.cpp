#include "scheduler/flexgen/policy_search.h"

#include <algorithm>
#include <coin/ClpSimplex.hpp>
#include <vector>

namespace triphase::flexgen {
namespace {

// Columns: the nine shares, then seconds of a prefill layer and of a decode layer.
constexpr int kPrefillTime = kShares;
constexpr int kDecodeTime = kShares + 1;
constexpr int kColumns = kShares + 2;

class Program {
 public:
  Program() {
    model_.setLogLevel(0);
    model_.resize(0, kColumns);
    for (int column = 0; column < kShares; ++column) model_.setColumnBounds(column, 0.0, 1.0);
    for (const int column : {kPrefillTime, kDecodeTime}) {
      model_.setColumnBounds(column, 0.0, COIN_DBL_MAX);
    }
  }

  void fix_at_zero(int column) { model_.setColumnBounds(column, 0.0, 0.0); }
  void objective(int column, double factor) { model_.setObjectiveCoefficient(column, factor); }

  // The three shares of one kind add up to the whole.
  void sum_to_one(int first) {
    const int columns[] = {first, first + 1, first + 2};
    const double ones[] = {1.0, 1.0, 1.0};
    model_.addRow(3, columns, ones, 1.0, 1.0);
  }

  // `time` >= lane. Scaled to its own size, which keeps the simplex well conditioned.
  void at_least(int time, const Linear& lane) { add(lane, time, 1.0, -lane.constant); }

  // bytes <= capacity
  void at_most(const Linear& bytes, double capacity) {
    const double scale = 1.0 / std::max(capacity, 1.0);
    add(scale * bytes, -1, 0.0, scale * (capacity - bytes.constant));
  }

  [[nodiscard]] bool solve() {
    model_.initialSolve();
    return model_.isProvenOptimal();
  }
  [[nodiscard]] double value(int column) const { return model_.primalColumnSolution()[column]; }

 private:
  // sum of shares - [time] <= bound
  void add(const Linear& linear, int time, double time_scale, double bound) {
    std::vector<int> columns;
    std::vector<double> values;
    for (int share = 0; share < kShares; ++share) {
      const double coefficient = linear.share[static_cast<std::size_t>(share)];
      if (coefficient == 0.0) continue;
      columns.push_back(share);
      values.push_back(coefficient);
    }
    if (time >= 0) {
      columns.push_back(time);
      values.push_back(-time_scale);
    }
    model_.addRow(static_cast<int>(columns.size()), columns.data(), values.data(), -COIN_DBL_MAX,
                  bound);
  }

  ClpSimplex model_;
};

}  // namespace

std::optional<Policy> best_shares(const Model& model, const Workload& workload,
                                  const Machine& machine, Objective objective) {
  Program program;
  for (const int first : {0, 3, 6}) {
    program.sum_to_one(first);
    if (machine.disk <= 0.0) program.fix_at_zero(first + 2);
  }
  program.fix_at_zero(8);  // hidden states never go to the disk: the code forces hg + hc = 1
  for (const Linear& lane : prefill_lanes(prefill_times(model, workload, machine), objective)) {
    program.at_least(kPrefillTime, lane);
  }
  for (const Linear& lane : decode_lanes(decode_times(model, workload, machine), objective)) {
    program.at_least(kDecodeTime, lane);
  }
  const MemoryUse use = memory_use(model, workload);
  const auto limit = [&](const std::vector<Linear>& uses, double capacity) {
    for (const Linear& bytes : uses) program.at_most(bytes, machine.usable * capacity);
  };
  limit(use.device, machine.device_memory);
  limit(use.host, machine.host_memory);
  if (machine.disk > 0.0) limit(use.disk, machine.disk);
  program.objective(kPrefillTime, model.layers);
  program.objective(kDecodeTime, model.layers * (workload.output - 1.0));
  if (!program.solve()) return std::nullopt;

  Policy policy{.workload = workload};
  double* const shares[] = {&policy.shares.wg, &policy.shares.wc, &policy.shares.wn,
                            &policy.shares.cg, &policy.shares.cc, &policy.shares.cn,
                            &policy.shares.hg, &policy.shares.hc, &policy.shares.hn};
  for (int share = 0; share < kShares; ++share) {
    *shares[share] = std::clamp(program.value(share), 0.0, 1.0);
  }
  policy.seconds = block_seconds(model, workload, machine, policy.shares, objective);
  policy.tokens_per_second = workload.block() * workload.output / policy.seconds;
  return policy;
}

std::optional<Policy> search_policy(const Model& model, double prompt, double output,
                                    const Machine& machine, Objective objective,
                                    const SearchLimits& limits) {
  std::optional<Policy> best;
  const auto attempt = [&](std::int64_t gpu_batch, std::int64_t batches) {
    const Workload workload{.prompt = prompt,
                            .output = output,
                            .gpu_batch = static_cast<double>(gpu_batch),
                            .num_batches = static_cast<double>(batches)};
    std::optional<Policy> policy = best_shares(model, workload, machine, objective);
    if (policy && (!best || policy->tokens_per_second > best->tokens_per_second)) best = policy;
    return policy ? policy->tokens_per_second : 0.0;
  };
  for (std::int64_t gpu_batch = 1; gpu_batch <= limits.max_gpu_batch;
       gpu_batch += gpu_batch < 4 ? 1 : gpu_batch) {
    if (limits.fixed_block > 0) {
      if (limits.fixed_block % gpu_batch == 0) attempt(gpu_batch, limits.fixed_block / gpu_batch);
      continue;
    }
    const std::int64_t most = limits.max_block / gpu_batch;
    if (most < 1) break;
    if (attempt(gpu_batch, 1) <= 0.0) break;
    // Doubling and bisection find the largest block that fits, then a scan down from it while the
    // throughput rises.
    std::int64_t fits_at = 1;
    std::int64_t fails_at = most + 1;
    for (std::int64_t batches = 2; batches <= most; batches *= 2) {
      if (attempt(gpu_batch, batches) <= 0.0) {
        fails_at = batches;
        break;
      }
      fits_at = batches;
    }
    while (fails_at - fits_at > 1) {
      const std::int64_t middle = fits_at + (fails_at - fits_at) / 2;
      (attempt(gpu_batch, middle) > 0.0 ? fits_at : fails_at) = middle;
    }
    double last = 0.0;
    for (std::int64_t batches = fits_at; batches >= 1; --batches) {
      const double speed = attempt(gpu_batch, batches);
      if (speed < last) break;
      last = speed;
    }
  }
  return best;
}

}  // namespace triphase::flexgen
