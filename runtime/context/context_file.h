#pragma once

// A fixed context on disk: DIR/clusters.json says what it is and is for, DIR/clusters.safetensors
// holds the numbers. Format: docs/fixed-context.md, docs/schemas/clusters.schema.json. Nothing read
// is trusted: every size, label and number is checked before it is used.

#include <string>
#include <string_view>

#include "models/config/model_config.h"
#include "runtime/context/fixed_context.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/manifest.h"

namespace triphase {

inline constexpr std::string_view kClustersJson = "clusters.json";
inline constexpr std::string_view kClustersData = "clusters.safetensors";

// Bytes of both files.
struct ContextFileSizes {
  std::uint64_t json = 0;
  std::uint64_t data = 0;
};

// Makes the directory where it is missing and replaces what an earlier run left. The numbers go
// first and the JSON holds their hash, so that a crash in between leaves nothing that can be read
// as something else. Throws ErrorRole::kIo E-IO-*.
ContextFileSizes write_fixed_context(FileOps& ops, const std::string& directory,
                                     const FixedContext& context);

// Throws ErrorRole::kInput E-IN-CLUSTERS naming the field, also for the clusters of another model.
[[nodiscard]] FixedContext read_fixed_context(const std::string& directory,
                                              const ModelIdentity& identity,
                                              const ModelConfig& config);

}  // namespace triphase
