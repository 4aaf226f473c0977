#pragma once

// Option texts -> RunOptions, with the contradictions between options refused.

#include "runtime/options/option_parser.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Throws ErrorRole::kUsage E-CLI-CONFLICT naming both options, E-CLI-SHARD, E-CLI-OPTION.
[[nodiscard]] RunOptions parse_run_options(const OptionValues& values,
                                           const Environment& environment);

// The same for `triphase score`, whose requests take the place of the prompts.
[[nodiscard]] RunOptions parse_score_options(const OptionValues& values,
                                             const Environment& environment);

// The same for `triphase eval`, which keeps all KV on the device. Its attention methods are lists,
// which it reads itself.
[[nodiscard]] RunOptions parse_eval_options(const OptionValues& values);

// What every command that loads a model has, and what those have that may check its weights.
void read_model_options(const OptionValues& values, RunOptions& options);
void read_weight_options(const OptionValues& values, RunOptions& options);

// --kv-sparsity where it is a number. Throws E-CLI-OPTION.
inline constexpr double kMaxSparsity = 0.999;
[[nodiscard]] double sparsity_option(const std::string& text);

// Sets the method's budget to --kv-sparsity where that is a number, then --attention-option's.
// Throws E-CLI-OPTION, and E-CLI-CONFLICT where one of those sets the budget too.
void read_attention_options(const OptionValues& values, AttentionOptions& attention);

// Whether an --attention-option ("swa.split=paper") is the method's.
[[nodiscard]] bool is_option_of(const std::string& option, const std::string& method);
// Of commands that try several methods: throws E-CLI-ATTOPTION for an --attention-option of none of
// them.
void refuse_stray_options(std::span<const std::string> attention_options,
                          std::span<const std::string> methods);

// For a job without --fixed-context. Throws E-CLI-CONFLICT where the method looks one up.
void check_needs_no_context(const AttentionOptions& attention);

// --emulate-link. Throws E-CLI-OPTION.
[[nodiscard]] EmulatedLink link_option(const std::string& text);

// "--shard i/n", else the array or rank variables of Slurm and Open MPI, else 0/1.
[[nodiscard]] Shard find_shard(const std::string& option_text, std::string_view option_origin,
                               const Environment& environment);

}  // namespace triphase
