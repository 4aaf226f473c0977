#pragma once

// The options of `triphase eval` that are more than one value: lists of a sweep, lengths of its
// windows, cells of the needle task. Everything wrong is E-CLI-OPTION or E-CLI-CONFLICT.

#include "runtime/eval/eval.h"
#include "runtime/eval/sweep.h"
#include "runtime/options/option_parser.h"

namespace triphase {

// --attentions, --sparsities, --compressions, --kv-dtypes; where a list is not given, the single
// option of the same meaning.
[[nodiscard]] eval::SweepLists sweep_lists(const OptionValues& values);

// --window and --prefill-len against the model's context.
void set_lengths(const OptionValues& values, std::int64_t context, eval::Setup& setup);

[[nodiscard]] eval::NeedleOptions needle_options(const OptionValues& values, std::int64_t context);

}  // namespace triphase
