#include "runtime/plan/run_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/profile_cache.h"
#include "runtime/profile/profiler.h"
#include "scheduler/memory_plan.h"

namespace triphase {

RunProfile::RunProfile(const RunOptions& options, const ModelBundle& model, Backend& backend,
                       Progress& progress, Log& log)
    : options_(options), model_(model), backend_(backend), progress_(progress), log_(log) {}

const HardwareProfile* RunProfile::find() {
  if (find_known() == nullptr) found_ = measured();
  return found_ ? &*found_ : nullptr;
}

const HardwareProfile* RunProfile::find_known() {
  if (!found_) {
    if (options_.profile.empty()) {
      found_ = cached();
    } else {
      found_ = named();
    }
  }
  return found_ ? &*found_ : nullptr;
}

std::string RunProfile::machine() const {
  return device_identity(backend_) + "; " + link_identity(options_.emulated_link);
}

HardwareProfile RunProfile::named() const {
  const ModelCosts costs = model_costs(model_.config, model_.weights_dtype);
  HardwareProfile profile =
      open_profile(options_.profile, costs, model_.weights_dtype, options_.model);
  if (!profile.measured) {
    log_.info("profile " + profile.name + " is derived from stated peaks, not measured here");
  } else if (profile.machine() != machine() && !options_.plan_force) {
    throw Error(ErrorRole::kInput, "E-PLAN-MACHINE", "device")
        .file(options_.profile)
        .found(profile.machine())
        .expected(machine())
        .hint("profile this machine with triphase profile, or --plan-force");
  }
  return profile;
}

std::string RunProfile::cache_path() const {
  const DType asked = options_.kv_dtype.value_or(model_.weights_dtype);
  return profile_cache_path(device_identity(backend_), link_identity(options_.emulated_link),
                            model_, asked == DType::kU8 ? model_.weights_dtype : asked);
}

std::optional<HardwareProfile> RunProfile::cached() const {
  const std::string cache = cache_path();
  auto profile = read_cached_profile(cache, model_, log_);
  if (profile) log_.info(fmt::format("profile of this machine: {}", escape_untrusted(cache)));
  return profile;
}

std::optional<HardwareProfile> RunProfile::measured() const {
  const std::string cache = cache_path();
  if (options_.dry_run) {
    log_.info(
        fmt::format("no profile of this machine and model yet: a run would measure one for "
                    "about {:g} s (or triphase profile, and --profile FILE)",
                    options_.profile_seconds));
    return std::nullopt;
  }
  const ProfileRequest request{.seconds = options_.profile_seconds,
                               .batch_size = std::max(options_.batch_size, kDefaultBatchSize),
                               .name = "measured by a run"};
  MeasuredProfile measured = measure_profile(model_, options_, request, backend_, progress_, log_);
  const bool kept = keep_profile(cache, measured.profile, log_);
  log_.info(fmt::format("measured this machine in {:.1f} s after loading for {:.1f} s{}",
                        measured.measure_seconds, measured.load_seconds,
                        kept ? "; kept in " + escape_untrusted(cache) : ""));
  return std::move(measured.profile);
}

}  // namespace triphase
