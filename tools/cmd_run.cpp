#include "base/error.h"
#include "runtime/generate.h"
#include "runtime/options/parse_run_options.h"
#include "tools/commands.h"

namespace triphase {

int cmd_run(const Arguments& arguments, std::unique_ptr<Log>& log) {
  try {
    const OptionValues values = begin_command("run", arguments, log);
    const RunOptions options = parse_run_options(values, process_environment());
    Progress progress(*log, options.looking.progress);
    return generate(options, progress, *log);
  } catch (Error& error) {
    if (arguments.empty() && error.role() == ErrorRole::kUsage) {
      error.hint(
          "try the shipped model: triphase run --model models/shipped/triphase-mha --prompts "
          "models/shipped/prompts.jsonl --output out.jsonl");
    }
    throw;
  }
}

}  // namespace triphase
