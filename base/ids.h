#pragma once

// Index types that do not convert into each other, so that a layer is never passed where a
// sequence is meant. All are 32-bit; -1 means "none".

#include <compare>
#include <cstdint>
#include <functional>

namespace triphase {

template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t index) : value(static_cast<std::int32_t>(index)) {}

  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using LayerId = Id<struct LayerTag>;
using SequenceId = Id<struct SequenceTag>;
using PageId = Id<struct PageTag>;
using TokenId = std::int32_t;  // an entry of the vocabulary

}  // namespace triphase

template <class Tag>
struct std::hash<triphase::Id<Tag>> {
  std::size_t operator()(triphase::Id<Tag> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
