#pragma once

// The options behind --attention-option and --policy-option, and the page of all options.

#include <optional>
#include <string>

#include "tools/commands.h"

namespace triphase {

// The answer to --attention-option METHOD=help, --policy-option POLICY=help or, for all of them,
// help alone, also as --attention help and --policy help; nothing: that is not asked. Throws
// E-CLI-OPTION for an unknown name.
[[nodiscard]] std::optional<std::string> named_options_help(const CommandSpec& command,
                                                            const Arguments& arguments);

// docs/options.md.
[[nodiscard]] std::string options_page();

}  // namespace triphase
