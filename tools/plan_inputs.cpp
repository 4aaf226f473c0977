#include "tools/plan_inputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "runtime/engine/model_bundle.h"
#include "runtime/options/option_names.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/workload.h"
#include "runtime/refuse.h"

namespace triphase {
PlannedModel open_planned_model(const OptionValues& values, const AttentionOptions& attention,
                                Log& log) {
  const std::string name = values.text("model");
  RunOptions options;
  options.files.model = name;
  std::error_code failed;
  options.weights.random = !std::filesystem::is_directory(name, failed);
  options.attention = attention;
  const ModelBundle bundle = open_model(options);
  const std::int64_t window = bundle.config.window_of_every_layer();
  const std::int64_t context = values.integer("input-len") + values.integer("output-len");
  if (attention.sparse() && window > 0 && context > bundle.config.max_positions) {
    refuse_option("--input-len and --output-len", fmt::format("{} tokens together", context),
                  fmt::format("at most {}: every layer has a sliding window, and {} chooses in "
                              "whole contexts",
                              bundle.config.max_positions, attention_name(attention.kind)),
                  "--attention dense");
  }
  if (const std::int64_t most = bundle.most_positions(); context > most) {
    log.warning(
        fmt::format("--input-len and --output-len make {} tokens; the context of {} is {}, "
                    "so that run refuses such lines",
                    context, escape_untrusted(name), most));
  }
  PlannedModel model{.name = name,
                     .fingerprint = bundle.identity.fingerprint,
                     .dtype = bundle.config.declared_dtype.value_or(DType::kF16)};
  model.costs = model_costs(bundle.config, model.dtype);
  const std::int64_t input = values.integer("input-len");
  const AttendedShares shares =
      shares_half_way(attention, bundle.config, input, values.integer("output-len"));
  model.shares = shares;
  if (values.has("kv-sparsity")) {
    // It is of the layers that choose, before a budget is rounded.
    const double dense = shares.dense_layers;
    model.shares.attended = dense + (1.0 - dense) * (1.0 - values.real("kv-sparsity"));
  }
  // A fixed context's clusters are not there to ask.
  if (!needs_fixed_context(attention)) model.fetch = sparse_fetch(attention, bundle, true);
  return model;
}

AttentionOptions attention_option(const OptionValues& values) {
  AttentionOptions attention;
  attention.kind = attention_from_name(values.text("attention"));
  if (!values.has("kv-sparsity")) {
    return values.given("attention") ? attention : AttentionOptions{};
  }
  const double sparsity = values.real("kv-sparsity");
  if (sparsity <= 0.0) return {};
  if (has_keep_ratio(attention)) set_keep_ratio(attention, 1.0 - sparsity);
  return attention;
}

HardwareProfile profile_option(const OptionValues& values, const PlannedModel& model,
                               const AttentionOptions& attention, Log& log) {
  HardwareProfile profile =
      open_profile(values.text("profile"), model.costs, model.dtype, model.name, attention);
  if (!profile.measured) {
    log.info("profile " + profile.name + " is derived from stated peaks, not measured");
  }
  note_uncharged_choosing(profile, attention, log);
  return profile;
}

DType kv_dtype_option(const std::string& text, const PlannedModel& model) {
  return dtype_from_name(text).value_or(model.dtype);
}

bool recompute_option(const OptionValues& values, const AttentionOptions& attention,
                      SparseFetch fetch) {
  return may_recompute(value_of(kRecomputeNames, values.text("recompute")).value(),
                       dtype_from_name(values.text("kv-dtype")), attention, fetch);
}

double miss_rate_option(const OptionValues& values, const HardwareProfile& profile,
                        const AttentionOptions& attention, Log& log) {
  if (values.has("miss-rate")) return values.real("miss-rate");
  return attention.sparse() ? profiled_miss_rate(profile, attention, log) : 1.0;
}

}  // namespace triphase
