#include "base/device.h"

namespace triphase {

std::string_view memory_tag_name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kWeights:
      return "weights";
    case MemoryTag::kKv:
      return "kv";
    case MemoryTag::kActivations:
      return "activations";
    case MemoryTag::kStaging:
      return "staging";
    case MemoryTag::kWorkspace:
      return "workspace";
    case MemoryTag::kInputs:
      return "cached-hidden-states";
    case MemoryTag::kSelection:
      return "selection";
    case MemoryTag::kTransposedK:
      return "kt";
  }
  return "unknown";
}

std::string_view memory_tier_name(MemoryTier tier) {
  return tier == MemoryTier::kDevice ? "device" : "host";
}

}  // namespace triphase
