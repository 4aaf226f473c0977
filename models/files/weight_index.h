#pragma once

// model.safetensors.index.json: which shard holds which tensor. Shard names are single path
// components ending in .safetensors, because the file is untrusted and its names get opened. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace triphase {

inline constexpr std::uint64_t kMaxIndexBytes = 200'000'000;
inline constexpr std::size_t kMaxShards = 4096;

struct WeightIndex {
  std::vector<std::string> shards;                             // sorted, each once
  std::vector<std::pair<std::string, std::uint32_t>> tensors;  // name, shard; sorted by name

  // Nothing: the tensor is not listed.
  [[nodiscard]] std::optional<std::uint32_t> shard_of(std::string_view name) const;
};

// Throws E-ST-INDEX naming `file` and the tensor.
[[nodiscard]] WeightIndex parse_weight_index(std::string_view text, std::string_view file);

}  // namespace triphase
