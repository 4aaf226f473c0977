#include "tools/plan_inputs.h"

#include <fmt/format.h>

#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/file_ops.h"
#include "runtime/model_bundle.h"
#include "runtime/plan/profile_file.h"
#include "scheduler/cost/hardware_spec.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMaxProfileBytes = std::uint64_t{64} << 20;

}  // namespace

PlannedModel open_planned_model(const std::string& name) {
  RunOptions options;
  options.model = name;
  options.random_weights = !std::filesystem::is_directory(name);
  const ModelBundle bundle = open_model(options);
  PlannedModel model{.name = name,
                     .fingerprint = bundle.identity.fingerprint,
                     .dtype = bundle.config.declared_dtype.value_or(DType::kF16)};
  model.costs = model_costs(bundle.config, model.dtype);
  return model;
}

HardwareProfile open_profile(const std::string& name, const PlannedModel& model) {
  if (const HardwareSpec* spec = find_hardware(name)) {
    HardwareProfile profile = derive_profile(*spec, model.costs, model.dtype);
    profile.model_name = model.name;
    return profile;
  }
  if (!std::filesystem::exists(name)) {
    throw Error(ErrorRole::kInput, "E-PLAN-PROFILE", "--profile")
        .found(name)
        .expected(fmt::format("a file, or one of {}", fmt::join(hardware_names(), ", ")));
  }
  HardwareProfile profile =
      parse_profile(read_small_file(system_file_ops(), name, kMaxProfileBytes), name);
  if (profile.layers != model.costs.layers || profile.hidden_size != model.costs.hidden ||
      profile.kv_width != model.costs.kv_width) {
    throw Error(ErrorRole::kInput, "E-PLAN-MODEL", "model")
        .file(name)
        .found(fmt::format("{} layers, hidden size {}, KV width {}", profile.layers,
                           profile.hidden_size, profile.kv_width))
        .expected(fmt::format("{}, {} and {} of {}", model.costs.layers, model.costs.hidden,
                              model.costs.kv_width, model.name))
        .hint("profile this model with triphase profile");
  }
  return profile;
}

DType kv_dtype_option(const std::string& text, const PlannedModel& model) {
  if (text == "fp16") return DType::kF16;
  if (text == "bf16") return DType::kBF16;
  if (text == "fp32") return DType::kF32;
  if (text == "int8") return DType::kI8;
  return model.dtype;
}

std::vector<std::string> text_list(const OptionValues& values, std::string_view option) {
  std::vector<std::string> parts;
  const std::string text = values.text(option);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> integer_list(const OptionValues& values, std::string_view option) {
  constexpr std::int64_t kLargest = 1 << 20;
  std::vector<std::int64_t> out;
  for (const std::string& part : text_list(values, option)) {
    const auto value = read_integer(part);
    if (!value || *value < 1 || *value > kLargest) {
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option))
          .found(part)
          .expected(fmt::format("integers from 1 to {}, separated by commas", kLargest));
    }
    out.push_back(*value);
  }
  return out;
}

}  // namespace triphase
