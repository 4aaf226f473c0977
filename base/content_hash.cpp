#include "base/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace triphase {
namespace {

std::string written(const XXH128_hash_t& hash) {
  return fmt::format("xxh3:{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string hash_text(std::string_view text) {
  return written(XXH3_128bits(text.data(), text.size()));
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void ContentHasher::add(std::string_view piece) {
  XXH3_128bits_update(state_.get(), piece.data(), piece.size());
}

std::string ContentHasher::text() const { return written(XXH3_128bits_digest(state_.get())); }

void ContentHasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace triphase
