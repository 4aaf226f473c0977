#pragma once

// Joins the complete outputs of the shards of one job into one file in input order. Writes nothing
// unless every shard is there and every line has exactly one record. Memory: 16 bytes per record.

#include <string>
#include <vector>

#include "runtime/job/file_ops.h"
#include "runtime/job/output_file.h"

namespace triphase {

struct MergeOptions {
  std::vector<std::string> shards;  // paths of outputs; each manifest lies beside its output
  std::string output;
  bool overwrite = false;
  bool private_files = false;
};

// Also writes OUT.manifest.json of the whole job, so that `triphase run` knows the result as its
// own. Throws E-IN-MERGE, E-IN-MANIFEST, E-IN-LOCKED (ErrorRole::kInput), E-CLI-OUTPUT, E-IO-*.
[[nodiscard]] RecordCounts merge_shards(const MergeOptions& options,
                                        FileOps& ops = system_file_ops());

}  // namespace triphase
