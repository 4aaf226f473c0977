#include "runtime/plan/profile_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "runtime/build_info.h"
#include "runtime/job/file_ops.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/profile_file.h"

namespace triphase {
namespace {

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

}  // namespace

std::string profile_cache_path(const std::string& device, const std::string& link,
                               const ModelBundle& model, DType kv_dtype) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  const ModelConfig& config = model.config;
  // Another build may compute at other speeds.
  const std::string key = fmt::format(
      "{}\n{} {}\n{}\n{}\nlayers {} hidden {} ffn {} heads {} {} of {} vocab {} context {}\n{} {}",
      kProfileFormat, program_version(), build_commit(), device, link, config.layers,
      config.hidden_size, config.ffn_size, config.heads, config.kv_heads, config.head_dim,
      config.vocab_size, config.max_positions, dtype_name(model.weights_dtype),
      dtype_name(kv_dtype));
  return folder / fmt::format("profile-{:016x}.json", XXH3_64bits(key.data(), key.size()));
}

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

}  // namespace triphase
