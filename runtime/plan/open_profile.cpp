#include "runtime/plan/open_profile.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "runtime/job/file_ops.h"
#include "runtime/plan/profile_file.h"
#include "scheduler/cost/hardware_spec.h"

namespace triphase {

HardwareProfile open_profile(const std::string& name, const ModelCosts& model, DType dtype,
                             std::string_view model_name, const AttentionOptions& attention) {
  if (const HardwareSpec* spec = find_hardware(name)) {
    HardwareProfile profile = derive_profile(*spec, model, dtype, {}, attention);
    profile.model_name = model_name;
    return profile;
  }
  std::error_code failed;  // what is there but cannot be looked at, reading refuses
  if (!std::filesystem::exists(name, failed) && !failed) {
    throw Error(ErrorRole::kInput, "E-PLAN-PROFILE", "--profile")
        .found(name)
        .expected(fmt::format("a file, or one of {}", fmt::join(hardware_names(), ", ")));
  }
  HardwareProfile profile =
      parse_profile(read_small_file(system_file_ops(), name, kMaxPlanBytes), name);
  require_profile_for_model(profile, model, model_name, name);
  return profile;
}

}  // namespace triphase
