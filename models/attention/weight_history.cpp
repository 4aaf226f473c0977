#include "models/attention/weight_history.h"

#include <algorithm>

namespace triphase {
namespace {

constexpr std::int64_t kBuckets = 8;

// NaN counts as 0; a weight is at most the number of heads. Rounded to the nearest: the product and
// the sum are exact.
std::int64_t fixed(float weight) {
  if (!(weight > 0.0F)) return 0;
  return static_cast<std::int64_t>(static_cast<double>(std::min(weight, 65536.0F)) * 0x1p32 + 0.5);
}

}  // namespace

void WeightHistory::add(std::span<const std::int32_t> tokens, std::span<const float> weights,
                        std::int64_t window) {
  const std::int64_t bucket_rows = exact_ ? 1 : std::max<std::int64_t>(1, window / kBuckets);
  if (buckets_.empty() || buckets_.back().rows >= bucket_rows) buckets_.emplace_back();
  Bucket& newest = buckets_.back();
  const std::size_t size = tokens.empty() ? 0 : static_cast<std::size_t>(tokens.back()) + 1;
  if (sums_.size() < size) sums_.resize(size, 0);
  if (exact_) {
    newest.tokens.assign(tokens.begin(), tokens.end());
  } else if (newest.weights.size() < size) {
    newest.weights.resize(size, 0);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(tokens[i]);
    const std::int64_t weight = fixed(weights[i]);
    sums_[token] += weight;
    if (exact_) {
      newest.weights.push_back(weight);
    } else {
      newest.weights[token] += weight;
    }
  }
  ++newest.rows;
  ++rows_;
  while (!buckets_.empty() && rows_ - buckets_.front().rows >= window && buckets_.size() > 1) {
    const Bucket& oldest = buckets_.front();
    for (std::size_t i = 0; i < oldest.weights.size(); ++i) {
      sums_[exact_ ? static_cast<std::size_t>(oldest.tokens[i]) : i] -= oldest.weights[i];
    }
    rows_ -= oldest.rows;
    buckets_.pop_front();
  }
}

void WeightHistory::scores(std::int64_t count, std::vector<float>& to) const {
  to.assign(static_cast<std::size_t>(count), 0.0F);
  const std::size_t known = std::min(to.size(), sums_.size());
  for (std::size_t i = 0; i < known; ++i) {
    to[i] = static_cast<float>(static_cast<double>(sums_[i]) * 0x1p-32);
  }
}

std::uint64_t WeightHistory::bytes() const {
  std::uint64_t bytes = sums_.size() * sizeof(std::int64_t);
  for (const Bucket& bucket : buckets_) {
    bytes +=
        bucket.tokens.size() * sizeof(std::int32_t) + bucket.weights.size() * sizeof(std::int64_t);
  }
  return bytes;
}

}  // namespace triphase
