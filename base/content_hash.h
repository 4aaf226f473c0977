#pragma once

// Contents that files are known again by: XXH3 of 128 bits, written "xxh3:" and 32 hex digits.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace triphase {

[[nodiscard]] std::string hash_text(std::string_view text);

// The same of a content that comes in pieces.
class ContentHasher {
 public:
  ContentHasher();
  void add(std::string_view piece);
  [[nodiscard]] std::string text() const;  // of all pieces so far

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// XXH3 of 64 bits, for tables in memory.
[[nodiscard]] std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace triphase
