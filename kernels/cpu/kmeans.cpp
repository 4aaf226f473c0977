#include "kernels/kmeans.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/random_values.h"

namespace triphase {
namespace {

constexpr std::int64_t kRows = 1024;  // points of one task, and of one matrix product

// A seeded sequence of numbers, the same on every machine (splitmix64: Steele et al. 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // In [0, 1).
  double next() {
    const std::uint64_t z = random_values::mix(state_);
    state_ += 0x9E3779B97F4A7C15ULL;
    return static_cast<double>(z >> 11U) * 0x1p-53;
  }

 private:
  std::uint64_t state_;
};

class Kmeans {
 public:
  Kmeans(ThreadPool& pool, std::span<const float> points, std::int64_t dim,
         const KmeansOptions& options)
      : pool_(pool),
        points_(points.data()),
        count_(std::ssize(points) / dim),
        dim_(dim),
        options_(options) {}

  KmeansResult run() {
    KmeansResult result;
    seed();
    result.labels.assign(static_cast<std::size_t>(count_), -1);
    while (result.iterations < options_.max_iterations) {
      const bool changed = assign(result.labels);
      ++result.iterations;
      if (!changed) break;
      if (result.iterations < options_.max_iterations) update(result.labels);
    }
    return result;
  }

 private:
  [[nodiscard]] const float* point(std::int64_t index) const { return points_ + index * dim_; }
  [[nodiscard]] std::int64_t seeded() const { return std::ssize(centers_) / dim_; }

  void add_center(std::int64_t index) {
    centers_.insert(centers_.end(), point(index), point(index) + dim_);
  }

  // Each next seed is a point drawn with the square of its distance to the nearest seed as weight.
  void seed() {
    const std::int64_t clusters = std::min(options_.clusters, count_);
    centers_.reserve(static_cast<std::size_t>(clusters * dim_));
    Random random(options_.seed);
    add_center(std::min(count_ - 1,
                        static_cast<std::int64_t>(random.next() * static_cast<double>(count_))));
    std::vector<float> nearest(static_cast<std::size_t>(count_),
                               std::numeric_limits<float>::infinity());
    while (seeded() < clusters) {
      look_at_newest(nearest);
      double total = 0.0;
      for (const float distance : nearest) total += distance;
      if (!(total > 0.0)) return;  // every point is a seed
      const double aim = random.next() * total;
      std::int64_t chosen = -1;
      double sum = 0.0;
      for (std::int64_t i = 0; i < count_; ++i) {
        const double distance = nearest[static_cast<std::size_t>(i)];
        if (distance <= 0.0) continue;
        chosen = i;
        sum += distance;
        if (sum > aim) break;
      }
      add_center(chosen);
    }
  }

  // nearest[i] = min(nearest[i], square of the distance to the newest seed). By differences, so
  // that an equal point has exactly 0.
  void look_at_newest(std::vector<float>& nearest) {
    const float* center = centers_.data() + (seeded() - 1) * dim_;
    pool_.parallel_for(ceil_div(count_, kRows), [&](std::int64_t task, int) {
      const std::int64_t end = std::min(count_, (task + 1) * kRows);
      for (std::int64_t i = task * kRows; i < end; ++i) {
        constexpr std::int64_t kSums = 8;  // apart, so that the compiler may use vectors
        float sums[kSums] = {};
        const float* at = point(i);
        std::int64_t c = 0;
        for (; c + kSums <= dim_; c += kSums) {
          for (std::int64_t lane = 0; lane < kSums; ++lane) {
            const float apart = at[c + lane] - center[c + lane];
            sums[lane] += apart * apart;
          }
        }
        for (; c < dim_; ++c) {
          const float apart = at[c] - center[c];
          sums[0] += apart * apart;
        }
        float distance = 0.0F;
        for (const float sum : sums) distance += sum;
        float& least = nearest[static_cast<std::size_t>(i)];
        least = std::min(least, distance);
      }
    });
  }

  // |x - c|^2 is least where x . c - |c|^2 / 2 is largest: a matrix product and a scan of its rows.
  bool assign(std::vector<std::int32_t>& labels) {
    const std::int64_t clusters = seeded();
    std::vector<float> offsets(static_cast<std::size_t>(clusters));
    for (std::int64_t k = 0; k < clusters; ++k) {
      double square = 0.0;
      for (std::int64_t c = 0; c < dim_; ++c) {
        const auto value = static_cast<double>(centers_[static_cast<std::size_t>(k * dim_ + c)]);
        square += value * value;
      }
      offsets[static_cast<std::size_t>(k)] = static_cast<float>(-0.5 * square);
    }
    closeness_.resize(static_cast<std::size_t>(std::min(count_, kRows) * clusters));
    std::vector<std::uint8_t> changed(static_cast<std::size_t>(std::min(count_, kRows)));
    bool any = false;
    const ConstMatrix centers{centers_.data(), DType::kF32, clusters, dim_, dim_};
    for (std::int64_t begin = 0; begin < count_; begin += kRows) {
      const std::int64_t rows = std::min(kRows, count_ - begin);
      cpu::linear(pool_, {point(begin), DType::kF32, rows, dim_, dim_}, centers, offsets.data(),
                  false, {closeness_.data(), DType::kF32, rows, clusters, clusters});
      constexpr std::int64_t kScan = 32;
      pool_.parallel_for(ceil_div(rows, kScan), [&](std::int64_t task, int) {
        const std::int64_t end = std::min(rows, (task + 1) * kScan);
        for (std::int64_t row = task * kScan; row < end; ++row) {
          const float* from = closeness_.data() + row * clusters;
          const auto label =
              static_cast<std::int32_t>(std::max_element(from, from + clusters) - from);
          std::int32_t& there = labels[static_cast<std::size_t>(begin + row)];
          changed[static_cast<std::size_t>(row)] = there != label ? 1 : 0;
          there = label;
        }
      });
      any = any || std::any_of(changed.begin(), changed.begin() + rows,
                               [](std::uint8_t one) { return one != 0; });
    }
    return any;
  }

  // A center becomes its members' mean; without members it stays.
  void update(const std::vector<std::int32_t>& labels) {
    const std::int64_t clusters = seeded();
    std::vector<std::int64_t> begins(static_cast<std::size_t>(clusters + 1));
    for (const std::int32_t label : labels) ++begins[static_cast<std::size_t>(label) + 1];
    for (std::size_t k = 1; k < begins.size(); ++k) begins[k] += begins[k - 1];
    std::vector<std::int64_t> next(begins.begin(), begins.end() - 1);
    std::vector<std::int64_t> members(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) {
      const auto label = static_cast<std::size_t>(labels[static_cast<std::size_t>(i)]);
      members[static_cast<std::size_t>(next[label]++)] = i;
    }
    pool_.parallel_for(clusters, [&](std::int64_t k, int) {
      const std::int64_t begin = begins[static_cast<std::size_t>(k)];
      const std::int64_t end = begins[static_cast<std::size_t>(k) + 1];
      if (begin == end) return;
      std::vector<double> sums(static_cast<std::size_t>(dim_));
      for (std::int64_t m = begin; m < end; ++m) {
        const float* at = point(members[static_cast<std::size_t>(m)]);
        for (std::int64_t c = 0; c < dim_; ++c) sums[static_cast<std::size_t>(c)] += at[c];
      }
      for (std::int64_t c = 0; c < dim_; ++c) {
        centers_[static_cast<std::size_t>(k * dim_ + c)] = static_cast<float>(
            sums[static_cast<std::size_t>(c)] / static_cast<double>(end - begin));
      }
    });
  }

  ThreadPool& pool_;
  const float* points_;
  std::int64_t count_;
  std::int64_t dim_;
  KmeansOptions options_;
  std::vector<float> centers_;    // [seeded cluster][dim]
  std::vector<float> closeness_;  // [point of a product][cluster]
};

}  // namespace

KmeansResult kmeans(ThreadPool& pool, std::span<const float> points, std::int64_t dim,
                    const KmeansOptions& options) {
  TRIPHASE_CHECK(dim > 0 && !points.empty() && points.size() % static_cast<std::size_t>(dim) == 0 &&
                     options.clusters > 0 && options.max_iterations > 0,
                 "kmeans: points and options");
  return Kmeans(pool, points, dim, options).run();
}

}  // namespace triphase
