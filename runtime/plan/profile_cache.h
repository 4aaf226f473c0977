#pragma once

// Profiles that runs have measured, kept for the next run on the same machine: one file for each
// machine, link, model shape, types and build under $XDG_CACHE_HOME/triphase (else
// $HOME/.cache/triphase). A cache: what cannot be read is measured again, what cannot be written is
// only reported.

#include <optional>
#include <string>

#include "runtime/engine/model_bundle.h"
#include "runtime/log.h"
#include "scheduler/cost/hardware_profile.h"

namespace triphase {

// The file for this machine and model; empty: there is no place for a cache. `kv_dtype` is that of
// the tables that are not INT8.
[[nodiscard]] std::string profile_cache_path(const std::string& device, const std::string& link,
                                             const ModelBundle& model, DType kv_dtype);

// Nothing where there is none, or none that can be used (which is logged).
[[nodiscard]] std::optional<HardwareProfile> read_cached_profile(const std::string& path,
                                                                 const ModelBundle& model,
                                                                 Log& log);
// Returns whether it was kept; why not is logged.
bool keep_profile(const std::string& path, const HardwareProfile& profile, Log& log);

}  // namespace triphase
