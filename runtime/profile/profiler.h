#pragma once

// `triphase profile`: what this machine takes for this model's work, measured with the backend's
// own operations and the run's own transfer engine, as a hardware profile for planner and
// simulator.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/transfer/link.h"
#include "runtime/engine/workplace.h"
#include "runtime/profile/grid_measurement.h"
#include "scheduler/cost/hardware_profile.h"

namespace triphase {

struct ProfileRequest {
  double seconds = 60.0;          // measuring time, warm-up included; loading is not in it
  std::int64_t batch_size = 64;   // largest batch measured; less where memory is short
  std::int64_t context = 0;       // longest context measured; 0: the model's
  bool int8_kv = true;            // also decode steps with INT8 KV
  AttentionOptions attention;     // also what choosing costs under this method; dense: none
  std::string name = "measured";  // of the profile
};

struct ProfiledTable {
  std::string name;  // "decode", "choosing under swa"
  Repeatability repeatability;
};

struct MeasuredProfile {
  HardwareProfile profile;
  std::vector<ProfiledTable> tables;  // in the order in which they were measured
  double load_seconds = 0.0;
  double measure_seconds = 0.0;
  bool cut = false;  // --device-memory left room for less than the whole GPU does
};

// Which machine computes, and over which link its host is reached; what plans are compared by. The
// same text for the same CPU, instruction set, threads and link.
[[nodiscard]] std::string device_identity(Backend& backend);
[[nodiscard]] std::string link_identity(const Backend& backend,
                                        const std::optional<EmulatedLink>& link);

// Turns whole steps under a method, by (batch, tokens of all contexts), into what they take beside
// steps of the `dense` table that attend as many tokens as the method does, at least nothing.
void subtract_dense(const GridTable& dense, const AttentionOptions& attention, GridTable& steps);

// Loads the model (or makes random weights) and measures. `options`: model, device memory, host
// memory, link and weight checks of the run; its KV type is that of the profile's decode table
// where it is not INT8. A method in `request` must need no fixed context. Throws E-MEM-FIT when the
// model does not fit the memory budget.
[[nodiscard]] MeasuredProfile measure_profile(const RunOptions& options,
                                              const ProfileRequest& request,
                                              const Workplace& place);

// One line: how much was measured, how repeatable it was, and what to do with `file`, which holds
// it.
[[nodiscard]] std::string verdict(const MeasuredProfile& measured, std::string_view file);

}  // namespace triphase
