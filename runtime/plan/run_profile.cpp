#include "runtime/plan/run_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "runtime/build_info.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/engine/run_plan.h"
#include "runtime/job/file_ops.h"
#include "runtime/log.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/profile_file.h"
#include "runtime/profile/profiler.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/memory_plan.h"

namespace triphase {
namespace {

// Measuring time where this machine has no profile of the model yet, and of the method.
constexpr double kProfileSeconds = 5.0;
constexpr double kMethodSeconds = 3.0;

// Profiles that runs have measured, kept for the next run on the same machine: one file for each
// machine, link, model shape, types, attention method and build under $XDG_CACHE_HOME/triphase
// (else $HOME/.cache/triphase). A cache: what cannot be read is measured again, what cannot be
// written is only reported.

// An absolute path as the XDG base directory specification wants it; others are ignored.
std::filesystem::path cache_folder() {
  if (const char* base = std::getenv("XDG_CACHE_HOME"); base != nullptr && base[0] == '/') {
    return std::filesystem::path(base) / "triphase";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::filesystem::path(home) / ".cache" / "triphase";
  }
  return {};
}

// The method whose steps a run measures; dense: none. A fixed context's clusters are not there yet.
AttentionOptions measured_attention(const RunOptions& options) {
  return needs_fixed_context(options.attention) ? AttentionOptions{} : options.attention;
}

double profile_seconds(const RunOptions& options) {
  return kProfileSeconds + (measured_attention(options).sparse() ? kMethodSeconds : 0.0);
}

// The file for this machine and model; empty: there is no place for a cache. `kv_dtype` is that of
// the tables that are not INT8.
std::string profile_cache_path(const std::string& device, const std::string& link,
                               const ModelBundle& model, DType kv_dtype,
                               const AttentionOptions& attention,
                               std::optional<std::uint64_t> within) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  const ModelConfig& config = model.config;
  // Another build may compute at other speeds.
  std::string key = fmt::format(
      "{}\n{} {}\n{}\n{}\nlayers {} hidden {} ffn {} heads {} {} of {} vocab {} context {}\n{} {}",
      kProfileFormat, program_version(), build_commit(), device, link, config.layers,
      config.hidden_size, config.ffn_size, config.heads, config.kv_heads, config.head_dim,
      config.vocab_size, config.max_positions, dtype_name(model.weights_dtype),
      dtype_name(kv_dtype));
  if (config.experts.count > 0) {
    key += fmt::format("\nexperts {} of {}, ffn {}", config.experts.per_token, config.experts.count,
                       config.experts.ffn_size);
  }
  if (attention.sparse()) {
    key += fmt::format("\n{} {}", attention_name(attention.kind),
                       fmt::join(describe_attention_options(attention), " "));
  }
  if (within) key += fmt::format("\nwithin {} bytes", *within);
  return folder / fmt::format("profile-{:016x}.json", XXH3_64bits(key.data(), key.size()));
}

// Nothing where there is none, or none that can be used (which is logged).
std::optional<HardwareProfile> read_cached_profile(const std::string& path,
                                                   const ModelBundle& model, Log& log) {
  std::error_code none;
  if (path.empty() || !std::filesystem::exists(path, none)) return std::nullopt;
  try {
    HardwareProfile profile =
        parse_profile(read_small_file(system_file_ops(), path, kMaxPlanBytes), path);
    require_profile_for_model(profile, model_costs(model.config, model.weights_dtype),
                              model.identity.path, path);
    return profile;
  } catch (const Error& error) {
    log.warning(fmt::format("measuring again: {}", error.message()));
    return std::nullopt;
  }
}

// Returns whether it was kept; why not is logged.
bool keep_profile(const std::string& path, const HardwareProfile& profile, Log& log) {
  if (path.empty()) return false;
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file_atomically(system_file_ops(), path, profile_to_json(profile), 0644);
    return true;
  } catch (const Error& error) {
    log.warning(fmt::format("the profile is not kept: {}", error.message()));
  } catch (const std::filesystem::filesystem_error& error) {
    log.warning(fmt::format("the profile is not kept: {}: {}", escape_untrusted(path),
                            error.code().message()));
  }
  return false;
}

}  // namespace

const HardwareProfile* RunProfile::find() {
  if (!tried_) {
    tried_ = true;
    if (!options_.plan.profile.empty()) {
      found_ = named();
    } else {
      found_ = cached();
      if (!found_) found_ = measured();
    }
    if (found_) note_uncharged_choosing(*found_, options_.attention, place_.log);
  }
  return found_ ? &*found_ : nullptr;
}

std::string RunProfile::machine() const {
  return device_identity(place_.backend) + "; " +
         link_identity(place_.backend, options_.machine.emulated_link);
}

HardwareProfile RunProfile::named() const {
  const ModelCosts costs = model_costs(place_.model.config, place_.model.weights_dtype);
  HardwareProfile profile = open_profile(options_.plan.profile, costs, place_.model.weights_dtype,
                                         options_.files.model, options_.attention);
  if (!profile.measured) {
    place_.log.info("profile " + profile.name + " is derived from stated peaks, not measured here");
  } else if (profile.machine() != machine() && !options_.plan.force) {
    throw Error(ErrorRole::kInput, "E-PLAN-MACHINE", "device")
        .file(options_.plan.profile)
        .found(profile.machine())
        .expected(machine())
        .hint("profile this machine with triphase profile, or --plan-force");
  }
  return profile;
}

std::string RunProfile::cache_path(std::optional<std::uint64_t> within) const {
  std::optional<DType> asked = options_.machine.kv_dtype;
  if (asked == DType::kInt8) asked.reset();
  return profile_cache_path(device_identity(place_.backend),
                            link_identity(place_.backend, options_.machine.emulated_link),
                            place_.model,
                            kv_dtype_on(place_.machine(), asked, place_.model.weights_dtype),
                            measured_attention(options_), within);
}

std::optional<HardwareProfile> RunProfile::cached() const {
  std::string cache = cache_path({});
  auto profile = read_cached_profile(cache, place_.model, place_.log);
  if (!profile && options_.machine.device_memory) {
    cache = cache_path(options_.machine.device_memory);
    profile = read_cached_profile(cache, place_.model, place_.log);
  }
  if (profile) place_.log.info(fmt::format("profile of this machine: {}", escape_untrusted(cache)));
  return profile;
}

std::optional<HardwareProfile> RunProfile::measured() const {
  if (options_.looking.dry_run) {
    place_.log.info(
        fmt::format("no profile of this machine and model yet: a run would measure one for "
                    "about {:g} s (or triphase profile, and --profile FILE)",
                    profile_seconds(options_)));
    return std::nullopt;
  }
  const ProfileRequest request{
      .seconds = profile_seconds(options_),
      .batch_size = std::max(options_.machine.batch_size, default_batch_size(place_.machine())),
      .attention = measured_attention(options_),
      .name = "measured by a run"};
  MeasuredProfile measured;
  try {
    measured = measure_profile(options_, request, place_);
  } catch (const Error& error) {
    // A job that can run does so without.
    if (error.role() != ErrorRole::kResources) throw;
    place_.log.warning(fmt::format(
        "this machine is not measured, and no schedule is made: {}; --profile NAME needs no "
        "measuring",
        error.message()));
    return std::nullopt;
  }
  const std::string cache =
      cache_path(measured.cut ? options_.machine.device_memory : std::nullopt);
  const bool kept = keep_profile(cache, measured.profile, place_.log);
  place_.log.info(fmt::format("measured this machine in {:.1f} s after loading for {:.1f} s{}",
                              measured.measure_seconds, measured.load_seconds,
                              kept ? "; kept in " + escape_untrusted(cache) : ""));
  return std::move(measured.profile);
}

}  // namespace triphase
