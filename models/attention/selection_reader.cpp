#include "models/attention/selection_reader.h"

#include <algorithm>

namespace triphase {

std::span<const TokenChoice> SelectionReader::read(const Selection& selection, std::int64_t heads,
                                                   Stream& stream) {
  const auto rows = static_cast<std::size_t>(selection.rows);
  const auto lists = static_cast<std::size_t>(selection.lists);
  const auto capacity = static_cast<std::size_t>(selection.capacity);
  const std::int32_t* tokens = selection.tokens;
  const std::int32_t* counts = selection.counts;
  const float* alpha = selection.alpha;
  const std::size_t shares = alpha == nullptr ? 0 : rows * static_cast<std::size_t>(heads);
  if (!device_->runs_at_once() && rows > 0) {
    static_assert(sizeof(float) == sizeof(std::int32_t));
    const std::size_t words = rows * lists * (capacity + 1) + shares;
    if (words > capacity_) {
      arrived_ = HostBuffer();
      arrived_ = HostBuffer(*device_, 2 * words * sizeof(std::int32_t));
      capacity_ = 2 * words;
    }
    auto* at = arrived_.as<std::int32_t>();
    const auto bring = [&](const auto*& from, std::size_t count) {
      using T = std::remove_reference_t<decltype(from)>;
      if (count > 0) device_->copy(at, from, count * sizeof(std::int32_t), stream);
      from = reinterpret_cast<T>(at);
      at += count;
    };
    bring(tokens, rows * lists * capacity);
    bring(counts, rows * lists);
    if (shares > 0) bring(alpha, shares);
    stream.synchronize();
  }
  if (choices_.size() < rows) choices_.resize(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    TokenChoice& choice = choices_[row];
    choice.clear();
    for (std::size_t list = row * lists; list < (row + 1) * lists; ++list) {
      const std::int32_t* begin = tokens + list * capacity;
      choice.tokens.insert(choice.tokens.end(), begin, begin + counts[list]);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
    if (alpha != nullptr) {
      choice.alpha.assign(alpha + row * static_cast<std::size_t>(heads),
                          alpha + (row + 1) * static_cast<std::size_t>(heads));
    }
  }
  return std::span(choices_).first(rows);
}

}  // namespace triphase
