#include <fmt/format.h>

#include "base/error.h"
#include "runtime/job/job.h"
#include "runtime/job/merge.h"
#include "runtime/refuse.h"
#include "tools/commands.h"

namespace triphase {

int cmd_merge(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("merge", arguments, log);
  if (values.positionals().empty()) {
    refuse_option("SHARD", "missing", "the outputs of the shards", "triphase merge --help");
  }
  MergeOptions options;
  options.shards = values.positionals();
  options.output = values.text("output");
  options.overwrite = values.flag("overwrite");
  options.private_files = values.flag("private");
  const RecordCounts counts = merge_shards(options);
  log->info(fmt::format("{}: {} records of {} shards, {} failed", escape_untrusted(options.output),
                        counts.total(), options.shards.size(), counts.failed()));
  return exit_code_of(counts);
}

}  // namespace triphase
