#include "models/attention/selection_reader.h"

#include <algorithm>

namespace triphase {

void SelectionReader::begin(const Selection& selection, std::int64_t heads, Stream& stream) {
  selection_ = selection;
  heads_ = heads;
  const auto rows = static_cast<std::size_t>(selection.rows);
  const auto lists = static_cast<std::size_t>(selection.lists);
  const auto capacity = static_cast<std::size_t>(selection.capacity);
  if (device_->runs_at_once() || rows == 0) return;
  static_assert(sizeof(float) == sizeof(std::int32_t));
  const std::size_t shares =
      selection.alpha == nullptr ? 0 : rows * static_cast<std::size_t>(heads);
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
  bring(selection_.tokens, rows * lists * capacity);
  bring(selection_.counts, rows * lists);
  if (shares > 0) bring(selection_.alpha, shares);
}

std::span<const TokenChoice> SelectionReader::finish() {
  const auto rows = static_cast<std::size_t>(selection_.rows);
  const auto lists = static_cast<std::size_t>(selection_.lists);
  const auto heads = static_cast<std::size_t>(heads_);
  if (choices_.size() < rows) choices_.resize(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    TokenChoice& choice = choices_[row];
    choice.clear();
    for (std::size_t list = row * lists; list < (row + 1) * lists; ++list) {
      const std::int32_t* first =
          selection_.tokens + list * static_cast<std::size_t>(selection_.capacity);
      choice.tokens.insert(choice.tokens.end(), first, first + selection_.counts[list]);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
    if (selection_.alpha != nullptr) {
      choice.alpha.assign(selection_.alpha + row * heads, selection_.alpha + (row + 1) * heads);
    }
  }
  return choices();
}

}  // namespace triphase
