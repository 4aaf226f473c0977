#pragma once

// What a machine takes for a model's work: the content of a triphase-profile/3 file, measured by
// `triphase profile` or derived from stated peaks (hardware_spec.h). PURE values.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/attention/attention_options.h"
#include "scheduler/batch_planner.h"
#include "scheduler/cost/grid_table.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {

// The tables of a profile. Tokens are counted once for all layers together: a table gives the time
// of the whole model.
enum class CostTable : std::uint8_t {
  kDecode,      // one decode step by (batch, tokens attended by all sequences together)
  kDecodeInt8,  // the same with INT8 KV on the device; empty: as kDecode
  kPrefill,     // one chunk by (prompt tokens of the chunk, tokens before it)
  kRecompute,   // K and V from cached hidden states, by (sequences, tokens of each)
  kH2D,         // one bulk copy by bytes
  kD2H,         // one bulk copy by bytes
  kGather,      // host records to the device by (bytes of a record, records)
  kQuantize,    // quantizing full blocks, by tokens
  // Attention on the host where KV lies, from queries on the device to results on it, by (rows,
  // tokens attended by all rows together); empty: not possible, or not measured.
  kHostAttention,
};
inline constexpr std::size_t kCostTables = 9;

struct CostTableInfo {
  std::string_view name;  // in the file
  std::string_view x;     // what its axes count
  std::string_view y;     // empty: one variable
  bool required = true;
};
[[nodiscard]] const CostTableInfo& cost_table_info(CostTable table);

// What choosing tokens and keeping what it chooses by costs under a sparse attention method:
// seconds of a decode step of the whole model beside those of a dense step that attends as many
// tokens.
struct MethodCosts {
  std::string attention;                       // attention_name()
  std::vector<std::string> attention_options;  // describe_attention_options()
  // By (batch, tokens of all contexts together, attended or not).
  GridTable choosing;
  GridTable choosing_int8;  // with INT8 KV on the device; empty: as choosing
  friend bool operator==(const MethodCosts&, const MethodCosts&) = default;
};
// Of MethodCosts::choosing and choosing_int8.
[[nodiscard]] const CostTableInfo& method_table_info(bool int8);

// Which share of the tokens on the host that a sparse method chose had to cross the link; the
// token cache held the others. It depends on the prompts more than on the machine.
struct MissRate {
  std::string attention;                       // attention_name()
  std::vector<std::string> attention_options;  // describe_attention_options()
  double rate = 1.0;
  // Bytes of the token cache for each byte that a step of all prompts chooses on the host, in the
  // mean. From 1 on the cache holds everything that the step before chose.
  double token_cache_share = 0.0;
  std::int64_t prompts = 0;  // of the user's, that it was measured on
  std::int64_t steps = 0;    // decode steps
  friend bool operator==(const MissRate&, const MissRate&) = default;
};

// HardwareProfile::link of a measured GPU; a CPU's copies go over memory or an emulated link.
inline constexpr std::string_view kGpuLink = "the GPU's own";

// Most prompt tokens of a step on a derived machine: the systems whose figures such machines repeat
// compute prompts whole, or nearly.
inline constexpr std::int64_t kDerivedPrefillChunk = 2048;

struct HardwareProfile {
  std::string name;       // built-in name, or what the user called it
  bool measured = false;  // false: derived from peaks
  bool emulated = false;  // measured on a device that another one stands in for
  std::string device;
  std::uint64_t device_memory = 0;  // bytes that a process can use
  std::string host;
  std::uint64_t host_memory = 0;
  std::string link;               // of a measured machine: what its copies go over
  std::string model_fingerprint;  // of a measured model; empty: a built-in shape
  std::string model_name;
  ModelShape shape;  // of the model that the tables are for
  std::vector<std::string>
      notes;  // where derived numbers come from; how repeatable measured ones are
  std::array<GridTable, kCostTables> tables;
  std::vector<MethodCosts> methods;  // empty: none was measured
  std::vector<MissRate> miss_rates;  // empty: none was measured

  [[nodiscard]] const GridTable& table(CostTable which) const {
    return tables[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] GridTable& table(CostTable which) {
    return tables[static_cast<std::size_t>(which)];
  }
  // What a plan made from it holds for: the device and the link of a measured machine, the name of
  // a derived one.
  [[nodiscard]] std::string machine() const {
    return measured ? device + "; " + link : name + " (derived)";
  }
  // Most prompt tokens of a step where nobody chooses: as a run on a measured machine has it.
  [[nodiscard]] std::int64_t prefill_chunk() const {
    if (!measured) return kDerivedPrefillChunk;
    return link == kGpuLink ? kGpuPrefillChunk : kCpuPrefillChunk;
  }
  // What was measured under this method with exactly these options; null: nothing was.
  [[nodiscard]] const MethodCosts* method_costs(const AttentionOptions& attention) const;
  [[nodiscard]] const MissRate* miss_rate(const AttentionOptions& attention) const;
  friend bool operator==(const HardwareProfile&, const HardwareProfile&) = default;
};

}  // namespace triphase
