#pragma once

// clusters.json: what the clusters of a fixed context are and what they are for, without their
// numbers. Schema: docs/schemas/clusters.schema.json. Plain values.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/context/fixed_context.h"

namespace triphase {

inline constexpr std::string_view kClustersFormat = "triphase-clusters/1";
inline constexpr std::string_view kClustersCode = "E-IN-CLUSTERS";

struct ContextFacts {
  FixedContext context;     // without tokens; of the clusters only counts and thresholds
  std::int64_t tokens = 0;  // how many there are
  std::uint64_t data_bytes = 0;
  std::string data_hash;  // of clusters.safetensors
};

[[nodiscard]] std::string context_facts_json(const FixedContext& context, std::int64_t tokens,
                                             std::uint64_t data_bytes, std::string_view data_hash);

// Throws ErrorRole::kInput E-IN-CLUSTERS naming the field.
[[nodiscard]] ContextFacts parse_context_facts(std::string_view text, std::string_view file);

}  // namespace triphase
