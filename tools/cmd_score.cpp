// `triphase score`: log-likelihoods of given continuations and texts, in bulk.

#include "runtime/generate.h"
#include "runtime/options/parse_run_options.h"
#include "tools/commands.h"

namespace triphase {

int cmd_score(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("score", arguments, log);
  const RunOptions options = parse_score_options(values, process_environment());
  Progress progress(*log, options.looking.progress);
  return generate(options, progress, *log);
}

}  // namespace triphase
