#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace triphase::reference {
namespace {

// One head's row of K or V. `magnitude` bounds what the stored form adds up to: |x|, or
// |lambda| (code + |zero|) of a quantized value.
struct Row {
  std::vector<double> value;
  std::vector<double> magnitude;
};

void read_plain(const void* data, DType dtype, const KvLayerView& cache, std::int64_t head,
                std::int64_t page, std::int64_t offset, Row& to) {
  const std::int64_t row = (page * cache.kv_heads + head) * cache.page_tokens + offset;
  const ConstMatrix all{data, dtype, row + 1, cache.head_dim, cache.head_dim};
  to.value.clear();
  to.magnitude.clear();
  for (std::int64_t c = 0; c < cache.head_dim; ++c) {
    to.value.push_back(element(all, row, c));
    to.magnitude.push_back(std::abs(to.value.back()));
  }
}

void read_codes(const void* data, const KvLayerView& cache, std::int64_t value, std::int64_t head,
                std::int64_t scale_page, std::int64_t page, std::int64_t offset, Row& to) {
  const std::uint8_t* codes =
      static_cast<const std::uint8_t*>(data) +
      ((page * cache.kv_heads + head) * cache.page_tokens + offset) * cache.head_dim;
  const KvScale* scales =
      cache.scales + ((scale_page * 2 + value) * cache.kv_heads + head) * cache.head_dim;
  to.value.clear();
  to.magnitude.clear();
  for (std::int64_t c = 0; c < cache.head_dim; ++c) {
    const double lambda = kv_lambda(scales[c].bits);
    const double zero = kv_zero(scales[c].bits);
    to.value.push_back(lambda * (codes[c] - zero));
    to.magnitude.push_back(lambda * (codes[c] + std::abs(zero)));
  }
}

// A token of a segment under one KV head: where it lies.
struct Place {
  std::int64_t token;
  std::int64_t page;
  std::int64_t offset;
};

// Query head `head` of `heads`.
std::vector<Place> places_of(const KvLayerView& cache, const AttentionSegment& segment,
                             std::int64_t query, std::int64_t head, std::int64_t heads) {
  std::vector<Place> places;
  const std::int64_t own = (segment.context_tokens - 1) / cache.page_tokens;
  const auto page_of = [&](std::int64_t token) {
    const std::int64_t index = token / cache.page_tokens;
    return cache.quantized() && index == own ? segment.partial_page
                                             : segment.pages[static_cast<std::size_t>(index)];
  };
  if (segment.chosen != nullptr) {
    const Selection& chosen = *segment.chosen;
    const std::int64_t entry = segment.chosen_row * chosen.lists + head / (heads / chosen.lists);
    for (std::int64_t i = 0; i < chosen.counts[entry]; ++i) {
      const std::int64_t at = entry * chosen.capacity + i;
      const std::int64_t token = chosen.tokens[at];
      if (token > segment.context_tokens - segment.query_count + query) break;
      const bool has_slot =
          chosen.slots != nullptr && !(cache.quantized() && token / cache.page_tokens == own);
      const std::int64_t page =
          has_slot ? chosen.slots[at] / cache.page_tokens : page_of(token).value;
      places.push_back({token, page, token % cache.page_tokens});
      if (has_slot) places.back().offset = chosen.slots[at] % cache.page_tokens;
    }
    return places;
  }
  const std::int64_t last = segment.context_tokens - segment.query_count + query;
  const std::int64_t first =
      segment.window > 0 ? std::max<std::int64_t>(0, last + 1 - segment.window) : 0;
  for (std::int64_t token = first; token <= last; ++token) {
    places.push_back({token, page_of(token).value, token % cache.page_tokens});
  }
  return places;
}

void read_row(const KvLayerView& cache, const AttentionSegment& segment, const Place& place,
              std::int64_t value, std::int64_t kv_head, Row& to) {
  const void* data = value == 0 ? cache.k : cache.v;
  if (!cache.quantized()) {
    read_plain(data, cache.dtype, cache, kv_head, place.page, place.offset, to);
    return;
  }
  const std::int64_t index = place.token / cache.page_tokens;
  if (index == (segment.context_tokens - 1) / cache.page_tokens) {
    read_plain(value == 0 ? cache.partial_k : cache.partial_v, cache.partial_dtype, cache, kv_head,
               place.page, place.offset, to);
    return;
  }
  read_codes(data, cache, value, kv_head,
             segment.scale_pages[static_cast<std::size_t>(index)].value, place.page, place.offset,
             to);
}

}  // namespace

AttentionValues attention(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                          std::span<const AttentionSegment> segments, ScoreScale scale) {
  const std::int64_t dim = cache.head_dim;
  const auto width = static_cast<std::size_t>(heads * dim);
  AttentionValues result;
  Row k;
  Row v;
  result.value.assign(static_cast<std::size_t>(q.rows) * width, 0.0);
  result.magnitude = result.value;
  result.score_magnitude.assign(static_cast<std::size_t>(q.rows * heads), 0.0);
  for (const AttentionSegment& segment : segments) {
    for (std::int64_t i = 0; i < segment.query_count * heads; ++i) {
      const std::int64_t query = i / heads;
      const std::int64_t head = i % heads;
      const std::int64_t kv_head = head / (heads / cache.kv_heads);
      const std::int64_t row = segment.query_begin + query;
      const std::vector<Place> places = places_of(cache, segment, query, head, heads);
      std::vector<double> weights;
      double& largest = result.score_magnitude[static_cast<std::size_t>(row * heads + head)];
      for (const Place& place : places) {
        read_row(cache, segment, place, 0, kv_head, k);
        double score = 0;
        double magnitude = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          const double factor = scale.factor * element(q, row, head * dim + c);
          score += factor * k.value[static_cast<std::size_t>(c)];
          magnitude += std::abs(factor) * k.magnitude[static_cast<std::size_t>(c)];
        }
        if (scale.cap > 0.0F) score = scale.cap * std::tanh(score / scale.cap);
        weights.push_back(score);
        largest = std::max(largest, magnitude);
      }
      if (weights.empty()) continue;
      double top = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      if (scale.sinks != nullptr) {
        const double sink = scale.sinks[head];
        top = std::max(top, sink);
        total = std::exp(sink - top);
      }
      for (double& weight : weights) total += weight = std::exp(weight - top);
      for (double& weight : weights) weight /= total;
      for (std::size_t at_place = 0; at_place < places.size(); ++at_place) {
        read_row(cache, segment, places[at_place], 1, kv_head, v);
        for (std::int64_t c = 0; c < dim; ++c) {
          const auto at =
              static_cast<std::size_t>(row) * width + static_cast<std::size_t>(head * dim + c);
          result.value[at] += weights[at_place] * v.value[static_cast<std::size_t>(c)];
          result.magnitude[at] += weights[at_place] * v.magnitude[static_cast<std::size_t>(c)];
        }
      }
      result.weights.push_back(std::move(weights));
    }
  }
  return result;
}

std::vector<double> cached_row(const KvLayerView& cache, const AttentionSegment& segment,
                               std::int64_t kv_head, std::int64_t token, bool value) {
  const std::int64_t last = segment.query_count - 1;
  for (const Place& place : places_of(cache, segment, last, kv_head, cache.kv_heads)) {
    if (place.token != token) continue;
    Row row;
    read_row(cache, segment, place, value ? 1 : 0, kv_head, row);
    return row.value;
  }
  return {};
}

}  // namespace triphase::reference
