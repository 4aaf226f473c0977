#include "runtime/engine/make_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/options/option_parser.h"
#include "runtime/refuse.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"

namespace triphase {
namespace {

// One option of a policy, and where its value goes.
struct Knob : PolicyOption {
  std::function<bool(std::string_view text)> set;  // false: not such a value
};

constexpr std::int64_t kNever = std::numeric_limits<std::int32_t>::max();

Knob count(std::string_view name, std::int64_t& value, std::string_view help) {
  return {
      {name, "an integer of at least 0", value == kNever ? "never" : std::to_string(value), help},
      [&value](std::string_view text) {
        const auto read = read_integer(text);
        if (!read || *read < 0) return false;
        value = *read;
        return true;
      }};
}

Knob share(std::string_view name, double& value, std::string_view help) {
  return {{name, "a number from 0 to 1", fmt::format("{:g}", value), help},
          [&value](std::string_view text) {
            const auto read = read_real(text);
            if (!read || *read < 0.0 || *read > 1.0) return false;
            value = *read;
            return true;
          }};
}

// A choice among few, by their names.
template <class Value>
Knob one_of(std::string_view name, std::vector<std::pair<std::string_view, Value>> choices,
            Value& value, std::string_view help) {
  std::vector<std::string_view> names;
  std::string_view now;
  for (const auto& choice : choices) {
    names.push_back(choice.first);
    if (choice.second == value) now = choice.first;
  }
  return {{name, fmt::format("{}", fmt::join(names, " or ")), std::string(now), help},
          [choices = std::move(choices), &value](std::string_view text) {
            const auto found =
                std::ranges::find(choices, text, &std::pair<std::string_view, Value>::first);
            if (found == choices.end()) return false;
            value = found->second;
            return true;
          }};
}

Knob on_off(std::string_view name, bool& value, std::string_view help) {
  return one_of<bool>(name, {{"on", true}, {"off", false}}, value, help);
}

using Knobs = std::vector<Knob>;

Knobs knobs_of(FlexGenOptions& flexgen) {
  return {share("kv-share", flexgen.device_kv_share,
                "Share of a block's sequences with KV on the device."),
          share("weight-share", flexgen.device_weight_share,
                "Share of the layers with weights on the device."),
          count("gpu-batch", flexgen.gpu_batch, "Sequences computed together; 0 is all of them."),
          count("num-batches", flexgen.num_batches,
                "Such batches in a block, for which a layer's weights are brought once."),
          on_off("overlap", flexgen.overlap, "Whether copies and compute run at the same time."),
          one_of("host-kv",
                 {{"stream", HostKvUse::kStream}, {"cpu-attention", HostKvUse::kCpuAttention}},
                 flexgen.host_kv, "KV on the host crosses the link, or is attended there.")};
}

Knobs knobs_of(VllmOptions& vllm) {
  return {one_of("preemption", {{"recompute", PreemptMode::kDrop}, {"swap", PreemptMode::kSwap}},
                 vllm.preemption, "A preempted request is computed again, or waits on the host.")};
}

Knobs knobs_of(AccelerateOptions& accelerate) {
  return {on_off("overlap", accelerate.overlap, "Whether the next layer is prefetched.")};
}

Knobs knobs_of(ZeroOptions& zero) {
  return {one_of("mode", {{"2022", ZeroMode::k2022}, {"2023", ZeroMode::k2023}}, zero.mode,
                 "2022 keeps KV on the device; 2023 keeps it on the host and attends it there."),
          on_off("overlap", zero.overlap, "Whether the next layer is prefetched.")};
}

// Without a plan: Phase I until memory is short, then the oldest blocks leave as needed.
PhaseSchedule unplanned_schedule() { return {.p1 = kNever, .p2 = kNever}; }

Knobs knobs_of(PhaseSchedule& schedule) {
  return {
      count("p1", schedule.p1, "Decode step at which Phase II begins."),
      share("alpha", schedule.alpha, "Share of the context on the host from Phase II on."),
      count("window", schedule.window_tokens, "Last tokens that stay on the device."),
      share("window-share", schedule.window_share,
            "Last tokens that stay on the device, as a share of the context."),
      count("streamed-layers", schedule.streamed_layers, "Layers whose weights stay on the host."),
      count("p2", schedule.p2, "Decode step at which Phase III begins."),
      share("beta", schedule.beta,
            "Share of the oldest tokens on the host that Phase III recomputes."),
      count("input-tokens", schedule.input_tokens,
            "Leading tokens of each request whose hidden states are cached; beta needs them.")};
}

void read_knobs(const RunOptions& options, const Knobs& knobs) {
  for (const std::string& option : options.machine.policy_options) {
    const std::size_t equals = option.find('=');
    const std::string_view name = std::string_view(option).substr(0, equals);
    const auto knob = std::ranges::find(knobs, name, &Knob::name);
    if (equals == std::string::npos || knob == knobs.end()) {
      std::vector<std::string_view> names;
      for (const Knob& known : knobs) names.push_back(known.name);
      refuse_option("--policy-option", option,
                    names.empty()
                        ? fmt::format("nothing: policy {} has no options", options.machine.policy)
                        : fmt::format("NAME=VALUE with one of {}", fmt::join(names, ", ")));
    }
    if (!knob->set(std::string_view(option).substr(equals + 1))) {
      refuse_option("--policy-option", option, fmt::format("{} as {}", knob->name, knob->expected));
    }
  }
}

// The host attends whole contexts as they are stored.
void check_host_attention(const RunOptions& options, std::string_view knob,
                          std::string_view instead) {
  const auto refuse = [&](std::string_view option, std::string_view found,
                          std::string_view expected) {
    refuse_conflict(option, fmt::format("{} with --policy-option {}", found, knob), expected,
                    fmt::format("or {}", instead));
  };
  if (options.machine.kv_dtype == DType::kInt8) refuse("--kv-dtype", "int8", "fp16, bf16 or fp32");
  if (options.attention.sparse()) {
    refuse("--attention", attention_name(options.attention.kind), "dense");
  }
}

template <class Options>
Options read_options(const RunOptions& options, Options own = {}) {
  read_knobs(options, knobs_of(own));
  return own;
}

std::shared_ptr<const PlacementPolicy> make_triphase(const RunOptions& options) {
  if (options.plan.schedule) return std::make_shared<TriphasePolicy>(*options.plan.schedule);
  const PhaseSchedule schedule = read_options(options, unplanned_schedule());
  if (schedule.beta > 0.0 && schedule.input_tokens == 0) {
    refuse_option("--policy-option", "beta without input-tokens",
                  "input-tokens=N, for how many leading tokens hidden states are cached");
  }
  return std::make_shared<TriphasePolicy>(schedule);
}

template <class Options>
std::vector<PolicyOption> listed(Options own = {}) {
  const Knobs knobs = knobs_of(own);
  return {knobs.begin(), knobs.end()};
}

}  // namespace

std::vector<PolicyOption> policy_options_of(std::string_view policy) {
  if (policy == "triphase") return listed(unplanned_schedule());
  if (policy == "flexgen") return listed<FlexGenOptions>();
  if (policy == "vllm") return listed<VllmOptions>();
  if (policy == "accelerate") return listed<AccelerateOptions>();
  if (policy == "zero") return listed<ZeroOptions>();
  return {};
}

std::shared_ptr<const PlacementPolicy> make_policy(const RunOptions& options) {
  const std::string& policy = options.machine.policy;
  if (policy == "flexgen") {
    const auto flexgen = read_options<FlexGenOptions>(options);
    if (flexgen.host_kv == HostKvUse::kCpuAttention) {
      check_host_attention(options, "host-kv=cpu-attention", "host-kv=stream");
    }
    return std::make_shared<FlexGenPolicy>(flexgen);
  }
  if (policy == "vllm") return std::make_shared<VllmPolicy>(read_options<VllmOptions>(options));
  if (policy == "accelerate") {
    return std::make_shared<AcceleratePolicy>(read_options<AccelerateOptions>(options));
  }
  if (policy == "zero") {
    const auto zero = read_options<ZeroOptions>(options);
    if (zero.mode == ZeroMode::k2023) {
      check_host_attention(options, "mode=2023, whose attention is on the host", "mode=2022");
    }
    return std::make_shared<ZeroPolicy>(zero);
  }
  if (policy == "device-only") {
    read_knobs(options, {});
    return std::make_shared<DeviceOnlyPolicy>();
  }
  TRIPHASE_CHECK(policy == "triphase", "the option table knows the policies");
  return make_triphase(options);
}

}  // namespace triphase
