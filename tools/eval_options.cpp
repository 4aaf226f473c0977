#include "tools/eval_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "runtime/options/parse_run_options.h"
#include "tools/commands.h"

namespace triphase {
namespace {

constexpr std::int64_t kNeedleLengths = 4;  // the context, and halves of it

template <class Number, class Read>
std::vector<Number> number_list(const OptionValues& values, std::string_view option,
                                std::string_view expected, const Read& read) {
  std::vector<Number> numbers;
  const std::string all = values.text(option);
  std::string_view text = all;
  for (;;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::optional<Number> number = read(text.substr(0, comma));
    if (!number) {
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option))
          .found(text.substr(0, comma))
          .expected(expected);
    }
    numbers.push_back(*number);
    if (comma == text.size()) return numbers;
    text.remove_prefix(comma + 1);
  }
}

void refuse_single(const OptionValues& values, const char* list, const char* single) {
  if (!values.has(list) || !values.given(single)) return;
  throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", fmt::format("--{}", single))
      .found(fmt::format("together with --{}", list))
      .expected("only one of them");
}

// "0.125" or "1/8".
std::optional<double> read_share(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return read_real(text);
  const std::optional<std::int64_t> over = read_integer(text.substr(0, slash));
  const std::optional<std::int64_t> under = read_integer(text.substr(slash + 1));
  if (!over || !under || *under <= 0) return std::nullopt;
  return static_cast<double>(*over) / static_cast<double>(*under);
}

}  // namespace

eval::SweepLists sweep_lists(const OptionValues& values) {
  refuse_single(values, "attentions", "attention");
  refuse_single(values, "sparsities", "kv-sparsity");
  refuse_single(values, "compressions", "kv-sparsity");
  refuse_single(values, "compressions", "sparsities");
  refuse_single(values, "kv-dtypes", "kv-dtype");
  eval::SweepLists lists;
  lists.attentions = values.has("attentions") ? option_choices(values, "attentions", "attention")
                                              : std::vector{values.text("attention")};
  lists.attention_options = values.texts("attention-option");
  if (values.has("sparsities")) {
    lists.sparsities = number_list<double>(
        values, "sparsities", "numbers from 0 to 0.999, separated by commas",
        [](std::string_view text) {
          const std::optional<double> share = read_real(text);
          return share && *share >= 0.0 && *share <= kMaxSparsity ? share : std::nullopt;
        });
  } else if (values.has("kv-sparsity")) {
    lists.sparsities = {sparsity_option(values.text("kv-sparsity"))};
  }
  if (values.has("compressions")) {
    lists.compressions = number_list<double>(
        values, "compressions", "shares above 0, at most 1, such as 1/8, separated by commas",
        [](std::string_view text) {
          const std::optional<double> share = read_share(text);
          return share && *share > 0.0 && *share <= 1.0 ? share : std::nullopt;
        });
  }
  const std::vector<std::string> dtypes = values.has("kv-dtypes")
                                              ? option_choices(values, "kv-dtypes", "kv-dtype")
                                              : std::vector{values.text("kv-dtype")};
  for (const std::string& name : dtypes) lists.kv_dtypes.push_back(dtype_option(name));
  return lists;
}

eval::NeedleOptions needle_options(const OptionValues& values, std::int64_t context) {
  eval::NeedleOptions options;
  if (values.has("needle")) options.needle = values.text("needle");
  if (values.has("question")) options.question = values.text("question");
  options.depths = number_list<double>(
      values, "depths", "numbers from 0 to 1, separated by commas", [](std::string_view text) {
        const std::optional<double> depth = read_real(text);
        return depth && *depth >= 0.0 && *depth <= 1.0 ? depth : std::nullopt;
      });
  if (values.has("lengths")) {
    options.lengths = number_list<std::int64_t>(
        values, "lengths", fmt::format("integers from 2 to {}, separated by commas", context),
        [context](std::string_view text) {
          const std::optional<std::int64_t> length = read_integer(text);
          return length && *length >= 2 && *length <= context ? length : std::nullopt;
        });
  } else {
    for (std::int64_t part = kNeedleLengths; part > 0; --part) {
      options.lengths.push_back(context >> (part - 1));
    }
  }
  return options;
}

void set_lengths(const OptionValues& values, std::int64_t context, eval::Setup& setup) {
  const std::int64_t window = values.integer("window");
  setup.window = window == 0 ? context : window;
  if (setup.window > context || setup.window < 4) {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--window")
        .found(fmt::to_string(setup.window))
        .expected(fmt::format("4 to {}, the context that fits", context));
  }
  setup.prefill_len = values.has("prefill-len") ? values.integer("prefill-len") : setup.window / 2;
  if (setup.prefill_len > setup.window - 2) {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--prefill-len")
        .found(fmt::to_string(setup.prefill_len))
        .expected(fmt::format("at most {}, two less than the window", setup.window - 2));
  }
}

}  // namespace triphase
