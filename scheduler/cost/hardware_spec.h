#pragma once

// Built-in machines: published peaks, and the shares of a peak that real kernels reach. Profiles
// for any model are derived from them. PURE. Nothing here was measured by us; a profile made from
// it says so. Rates in units per second.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cost/hardware_profile.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {

struct HardwareSpec {
  std::string_view name;
  std::string_view device;
  double device_gib = 0.0;        // what a process sees, driver's share taken off
  double host_gb = 0.0;           // 10^9 bytes
  double peak_flops = 0.0;        // FP16 with FP32 accumulation, dense
  double gemm_share = 0.0;        // of peak_flops, in large GEMMs
  double memory_rate = 0.0;       // device memory, bytes/s
  double memory_share = 0.0;      // of memory_rate, in decode attention and weight reads
  double link_rate = 0.0;         // bytes/s each way, large pinned copies
  double host_memory_rate = 0.0;  // host memory, bytes/s
};

// v100-16gb, v100-32gb and h100-80gb with ALISA's 20 GB/s link and 128 GB host; t4, rtx-4090,
// a100-40gb, a100-80gb, h200 with their PCIe generation's.
[[nodiscard]] const HardwareSpec* find_hardware(std::string_view name);  // nullptr: unknown
[[nodiscard]] std::vector<std::string> hardware_names();

// Costs that the derivation adds to the peaks, the same for all machines.
struct DerivedCosts {
  double layer_seconds = 25e-6;          // launches of one layer's kernels that nothing hides
  double copy_seconds = 10e-6;           // start of one bulk copy
  double gather_share = 0.9;             // of the link's rate, gathering records by a kernel
  double gather_record_seconds = 2e-9;   // per record on top
  double prefill_attention_share = 0.4;  // of the peak
  double host_attention_share = 0.5;     // of the host's memory rate
};

// A profile of `spec` running `model` with weights and activations of `dtype`. `attention`: also
// what choosing costs under this method, by the bytes that it reads; not where it needs a fixed
// context, whose clusters nobody knows here.
[[nodiscard]] HardwareProfile derive_profile(const HardwareSpec& spec, const ModelCosts& model,
                                             DType dtype, const DerivedCosts& costs = {},
                                             const AttentionOptions& attention = {});

}  // namespace triphase
