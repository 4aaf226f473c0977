#include "scheduler/attention/attention_options.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "scheduler/attention/attention_info.h"
#include "scheduler/attention/method_options.h"

namespace triphase {

// Each in the method's file.
#define TRIPHASE_ATTENTION_METHOD(kind, file, name) AttentionInfo file##_info();
#include "scheduler/attention/attention_methods.inc"
#undef TRIPHASE_ATTENTION_METHOD

namespace {

#define TRIPHASE_ATTENTION_METHOD(kind, file, name) name,
constexpr std::string_view kNames[] = {
#include "scheduler/attention/attention_methods.inc"
};
#undef TRIPHASE_ATTENTION_METHOD

Error option_error(std::string_view name, std::string_view found) {
  return Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", name).found(found);
}

std::string option_names(AttentionKind kind) {
  std::string names;
  for (const MethodOption& option : attention_info(kind).options) {
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  }
  return names.empty() ? "no option (" + std::string(attention_name(kind)) + " has none)"
                       : "one of " + names;
}

}  // namespace

const AttentionInfo& attention_info(AttentionKind kind) {
#define TRIPHASE_ATTENTION_METHOD(kind, file, name) file##_info(),
  static const std::array<AttentionInfo, std::size(kNames)> rows = {
#include "scheduler/attention/attention_methods.inc"
  };
#undef TRIPHASE_ATTENTION_METHOD
  return rows[static_cast<std::size_t>(kind)];
}

std::int64_t share_of_tokens(double share, std::int64_t tokens) {
  // The least bit above: 0.2 * 35 is 7.000000000000001 or 6.999999999999999 by luck.
  return static_cast<std::int64_t>(
      std::floor(share * static_cast<double>(tokens) * (1.0 + 0x1p-50)));
}

std::span<const std::string_view> attention_names() { return kNames; }

std::string_view attention_name(AttentionKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

AttentionKind attention_from_name(std::string_view name) {
  const auto* at = std::find(std::begin(kNames), std::end(kNames), name);
  if (at != std::end(kNames)) return static_cast<AttentionKind>(at - std::begin(kNames));
  std::string all;
  for (const std::string_view one : kNames) all += (all.empty() ? "" : ", ") + std::string(one);
  throw Error(ErrorRole::kUsage, "E-CLI-ATTENTION", "--attention")
      .found(name)
      .expected("one of " + all);
}

void set_attention_option(AttentionOptions& options, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  if (equals == std::string_view::npos) {
    throw option_error("--attention-option", assignment).expected("method.option=value");
  }
  for (const MethodOption& option : attention_info(options.kind).options) {
    if (option.name != name) continue;
    const std::string_view value = assignment.substr(equals + 1);
    if (option.set(options, value)) return;
    throw option_error(name, value).expected(option.expected);
  }
  throw option_error("--attention-option", name).expected(option_names(options.kind));
}

std::vector<std::string> describe_attention_options(const AttentionOptions& options) {
  std::vector<std::string> lines;
  for (const MethodOption& option : attention_info(options.kind).options) {
    lines.push_back(std::string(option.name) + "=" + option.get(options));
  }
  return lines;
}

bool needs_fixed_context(const AttentionOptions& options) {
  return attention_info(options.kind).needs_fixed_context;
}

bool scores_keys(const AttentionOptions& options) {
  return attention_info(options.kind).scores_keys;
}

bool scales_by_share(const AttentionOptions& options) {
  return attention_info(options.kind).scales_by_share;
}

bool keeps_transposed_k(const AttentionOptions& options) {
  const AttentionInfo& info = attention_info(options.kind);
  return info.keeps_transposed_k != nullptr && info.keeps_transposed_k(options);
}

bool has_keep_ratio(const AttentionOptions& options) {
  return attention_info(options.kind).set_keep != nullptr;
}

void set_keep_ratio(AttentionOptions& options, double keep) {
  const auto refuse = [&](std::string_view expected) {
    throw option_error("--kv-sparsity", number_text(1.0 - keep)).expected(expected);
  };
  if (!(keep > 0.0 && keep <= 1.0)) refuse("a sparsity from 0 to below 1");
  if (!options.sparse() && keep == 1.0) return;
  if (!has_keep_ratio(options)) refuse(attention_info(options.kind).keep_expected);
  attention_info(options.kind).set_keep(options, keep);
}

std::int64_t budget_tokens(const AttentionOptions& options, std::int64_t context,
                           std::int64_t prompt) {
  const AttentionInfo& info = attention_info(options.kind);
  const std::int64_t budget =
      info.budget == nullptr ? context : info.budget(options, context, prompt);
  return std::clamp<std::int64_t>(budget, std::min<std::int64_t>(1, context), context);
}

}  // namespace triphase
