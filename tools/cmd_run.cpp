#include "base/error.h"
#include "runtime/options/parse_run_options.h"
#include "tools/commands.h"

namespace triphase {

int cmd_run(const Arguments& arguments, std::unique_ptr<Log>& log) {
  try {
    const OptionValues values = begin_command("run", arguments, log);
    return run_job(parse_run_options(values, process_environment()), *log);
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
