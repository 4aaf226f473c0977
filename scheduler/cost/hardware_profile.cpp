#include "scheduler/cost/hardware_profile.h"

#include <algorithm>

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

const MissRate* HardwareProfile::miss_rate(const AttentionOptions& attention) const {
  const std::string_view method = attention_name(attention.kind);
  const std::vector<std::string> options = describe_attention_options(attention);
  const auto found = std::ranges::find_if(miss_rates, [&](const MissRate& one) {
    return one.attention == method && one.attention_options == options;
  });
  return found == miss_rates.end() ? nullptr : &*found;
}

}  // namespace triphase
