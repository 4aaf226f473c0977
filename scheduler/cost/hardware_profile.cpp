#include "scheduler/cost/hardware_profile.h"

namespace triphase {

const CostTableInfo& cost_table_info(CostTable table) {
  static constexpr std::array<CostTableInfo, kCostTables> kInfo{{
      {"decode", "batch", "tokens_attended"},
      {"decode_int8", "batch", "tokens_attended", false},
      {"prefill", "tokens", "context"},
      {"recompute", "batch", "tokens"},
      {"h2d", "bytes", ""},
      {"d2h", "bytes", ""},
      {"gather", "record_bytes", "count"},
      {"quantize", "tokens", ""},
      {"dequantize", "tokens", "", false},
      {"host_attention", "batch", "tokens_attended", false},
  }};
  return kInfo[static_cast<std::size_t>(table)];
}

}  // namespace triphase
