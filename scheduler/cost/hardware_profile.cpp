#include "scheduler/cost/hardware_profile.h"

#include <algorithm>

namespace triphase {
namespace {

// The entry for a method with exactly these options; null: there is none.
template <class Entry>
const Entry* find_entry(const std::vector<Entry>& entries, const AttentionOptions& attention) {
  const std::string_view method = attention_name(attention.kind);
  const std::vector<std::string> options = describe_attention_options(attention);
  const auto found = std::ranges::find_if(entries, [&](const Entry& one) {
    return one.attention == method && one.attention_options == options;
  });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

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
      {"host_attention", "batch", "tokens_attended", false},
  }};
  return kInfo[static_cast<std::size_t>(table)];
}

const CostTableInfo& method_table_info(bool int8) {
  static constexpr std::array<CostTableInfo, 2> kInfo{{
      {"choosing", "batch", "context_tokens"},
      {"choosing_int8", "batch", "context_tokens", false},
  }};
  return kInfo[int8 ? 1 : 0];
}

const MethodCosts* HardwareProfile::method_costs(const AttentionOptions& attention) const {
  return find_entry(methods, attention);
}

const MissRate* HardwareProfile::miss_rate(const AttentionOptions& attention) const {
  return find_entry(miss_rates, attention);
}

}  // namespace triphase
