#include "runtime/engine/make_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/options/option_parser.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"

namespace triphase {
namespace {

// One option of a policy: its name, what its value may be, and where the value goes.
struct Knob {
  std::string_view name;
  std::string expected;
  std::function<bool(std::string_view text)> set;  // false: not such a value
};

Knob count(std::string_view name, std::int64_t& value) {
  return {name, "an integer of at least 0", [&value](std::string_view text) {
            const auto read = read_integer(text);
            if (!read || *read < 0) return false;
            value = *read;
            return true;
          }};
}

Knob share(std::string_view name, double& value) {
  return {name, "a number from 0 to 1", [&value](std::string_view text) {
            const auto read = read_real(text);
            if (!read || *read < 0.0 || *read > 1.0) return false;
            value = *read;
            return true;
          }};
}

Knob on_off(std::string_view name, bool& value) {
  return {name, "on or off", [&value](std::string_view text) {
            if (text != "on" && text != "off") return false;
            value = text == "on";
            return true;
          }};
}

// A choice among few, by their names.
template <class Value>
Knob one_of(std::string_view name, std::vector<std::pair<std::string_view, Value>> choices,
            Value& value) {
  std::vector<std::string_view> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  return {name, fmt::format("{}", fmt::join(names, " or ")),
          [choices = std::move(choices), &value](std::string_view text) {
            const auto found =
                std::ranges::find(choices, text, &std::pair<std::string_view, Value>::first);
            if (found == choices.end()) return false;
            value = found->second;
            return true;
          }};
}

void read_knobs(const RunOptions& options, const std::vector<Knob>& knobs) {
  for (const std::string& option : options.machine.policy_options) {
    const std::size_t equals = option.find('=');
    const std::string_view name = std::string_view(option).substr(0, equals);
    const auto knob = std::ranges::find(knobs, name, &Knob::name);
    if (equals == std::string::npos || knob == knobs.end()) {
      std::vector<std::string_view> names;
      for (const Knob& known : knobs) names.push_back(known.name);
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--policy-option")
          .found(option)
          .expected(names.empty()
                        ? fmt::format("nothing: policy {} has no options", options.machine.policy)
                        : fmt::format("NAME=VALUE with one of {}", fmt::join(names, ", ")));
    }
    if (!knob->set(std::string_view(option).substr(equals + 1))) {
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--policy-option")
          .found(option)
          .expected(fmt::format("{} as {}", knob->name, knob->expected));
    }
  }
}

std::shared_ptr<const PlacementPolicy> make_flexgen(const RunOptions& options) {
  FlexGenOptions flexgen;
  read_knobs(
      options,
      {share("kv-share", flexgen.device_kv_share),
       share("weight-share", flexgen.device_weight_share), count("gpu-batch", flexgen.gpu_batch),
       count("num-batches", flexgen.num_batches), on_off("overlap", flexgen.overlap),
       one_of("host-kv",
              {{"stream", HostKvUse::kStream}, {"cpu-attention", HostKvUse::kCpuAttention}},
              flexgen.host_kv)});
  return std::make_shared<FlexGenPolicy>(flexgen);
}

// Without a plan: Phase I until memory is short, then the oldest blocks leave as needed.
std::shared_ptr<const PlacementPolicy> make_triphase(const RunOptions& options) {
  if (options.plan.schedule) return std::make_shared<TriphasePolicy>(*options.plan.schedule);
  PhaseSchedule schedule{.p1 = std::numeric_limits<std::int32_t>::max(),
                         .p2 = std::numeric_limits<std::int32_t>::max()};
  read_knobs(options,
             {count("p1", schedule.p1), share("alpha", schedule.alpha),
              count("window", schedule.window_tokens), share("window-share", schedule.window_share),
              count("streamed-layers", schedule.streamed_layers), count("p2", schedule.p2),
              share("beta", schedule.beta), count("input-tokens", schedule.input_tokens)});
  if (schedule.beta > 0.0 && schedule.input_tokens == 0) {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--policy-option")
        .found("beta without input-tokens")
        .expected("input-tokens=N, for how many leading tokens hidden states are cached");
  }
  return std::make_shared<TriphasePolicy>(schedule);
}

}  // namespace

std::shared_ptr<const PlacementPolicy> make_policy(const RunOptions& options) {
  if (options.machine.policy == "flexgen") return make_flexgen(options);
  if (options.machine.policy == "vllm") {
    VllmOptions vllm;
    read_knobs(options, {one_of("preemption",
                                {{"recompute", PreemptMode::kDrop}, {"swap", PreemptMode::kSwap}},
                                vllm.preemption)});
    return std::make_shared<VllmPolicy>(vllm);
  }
  if (options.machine.policy == "accelerate") {
    AccelerateOptions accelerate;
    read_knobs(options, {on_off("overlap", accelerate.overlap)});
    return std::make_shared<AcceleratePolicy>(accelerate);
  }
  if (options.machine.policy == "zero") {
    ZeroOptions zero;
    read_knobs(options,
               {one_of("mode", {{"2022", ZeroMode::k2022}, {"2023", ZeroMode::k2023}}, zero.mode),
                on_off("overlap", zero.overlap)});
    return std::make_shared<ZeroPolicy>(zero);
  }
  if (options.machine.policy == "device-only") {
    read_knobs(options, {});
    return std::make_shared<DeviceOnlyPolicy>();
  }
  TRIPHASE_CHECK(options.machine.policy == "triphase", "the option table knows the policies");
  return make_triphase(options);
}

}  // namespace triphase
