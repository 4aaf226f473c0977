#include "models/attention/selection_reader.h"

#include <type_traits>

#include "base/error.h"

namespace triphase {

Selection SelectionReader::arrived(const Selection& selection, std::int64_t heads, Stream& stream) {
  if (device_->runs_at_once() || selection.rows == 0) return selection;
  const auto rows = static_cast<std::size_t>(selection.rows);
  const auto lists = static_cast<std::size_t>(selection.lists);
  const auto capacity = static_cast<std::size_t>(selection.capacity);
  static_assert(sizeof(float) == sizeof(std::int32_t));
  const std::size_t shares =
      selection.alpha == nullptr ? 0 : rows * static_cast<std::size_t>(heads);
  const std::size_t words = rows * lists * (capacity + 1) + shares;
  if (words > capacity_) {
    arrived_ = HostBuffer();
    arrived_ = HostBuffer(*device_, 2 * words * sizeof(std::int32_t));
    capacity_ = 2 * words;
  }
  Selection there = selection;
  auto* at = arrived_.as<std::int32_t>();
  const auto bring = [&](const auto*& from, std::size_t count) {
    using T = std::remove_reference_t<decltype(from)>;
    if (count > 0) device_->copy(at, from, count * sizeof(std::int32_t), stream);
    from = reinterpret_cast<T>(at);
    at += count;
  };
  bring(there.tokens, rows * lists * capacity);
  bring(there.counts, rows * lists);
  if (shares > 0) bring(there.alpha, shares);
  stream.synchronize();
  return there;
}

std::span<const TokenChoice> SelectionReader::read(const Selection& selection, std::int64_t heads,
                                                   Stream& stream) {
  const Selection there = arrived(selection, heads, stream);
  TRIPHASE_CHECK(there.tokens != nullptr && there.counts != nullptr, "chosen lists");
  choices_.assign(static_cast<std::size_t>(there.rows), {});
  std::int64_t entry = 0;
  std::int64_t row = 0;
  for (TokenChoice& choice : choices_) {
    for (std::int64_t list = 0; list < there.lists; ++list, ++entry) {
      const std::int32_t* first = there.tokens + entry * there.capacity;
      choice.tokens.insert(choice.tokens.end(), first, first + there.counts[entry]);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
    if (there.alpha != nullptr) {
      choice.alpha.assign(there.alpha + row * heads, there.alpha + (row + 1) * heads);
    }
    ++row;
  }
  return choices_;
}

}  // namespace triphase
