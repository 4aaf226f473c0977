#include "runtime/plan/settled_numerics.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "runtime/job/file_ops.h"
#include "runtime/job/manifest.h"
#include "runtime/job/output_file.h"
#include "runtime/job/output_paths.h"

namespace triphase {
namespace {

bool has_records(const std::string& part) {
  std::error_code none;
  const std::uintmax_t bytes = std::filesystem::file_size(part, none);
  return !none && bytes > 0;
}

void keep_kv_values(MachineOptions& machine, const KvValues& there, bool gpu) {
  // A GPU keeps none in F32: such records are a CPU's, which the manifest's kernels say.
  if (gpu && there.dtype == DType::kF32) return;
  if (!machine.kv_dtype) machine.kv_dtype = there.dtype;
  if (*machine.kv_dtype == there.dtype && machine.kv_block == 0) {
    machine.kv_block = there.block_tokens;
  }
}

void keep_what_records_have(RunOptions& options, bool gpu) {
  const OutputPaths paths(options.files.output);
  if (!may_resume(options) || !path_exists(paths.manifest)) return;
  // Without records any manifest may be replaced.
  if (!path_exists(paths.output) && !has_records(paths.part)) return;
  const Manifest manifest = parse_manifest(
      read_small_file(system_file_ops(), paths.manifest, kMaxManifestBytes), paths.manifest);
  MachineOptions& machine = options.machine;
  machine.cached_hidden_states = std::max(machine.cached_hidden_states,
                                          static_cast<std::int64_t>(manifest.cached_hidden_states));
  options.plan.inputs_settled = true;
  // A plan that is given decides about the type.
  if (!options.plan.file.empty()) return;
  if (const auto there = parse_kv_values(manifest.kv_dtype)) keep_kv_values(machine, *there, gpu);
}

// A plan follows from a shard's own lines and from times measured here, so it may choose nothing
// that the other shards must share.
void choose_as_other_shards(RunOptions& options, DType unchosen) {
  if (!options.plan.file.empty()) return;
  options.plan.inputs_settled = true;
  if (!options.machine.kv_dtype) options.machine.kv_dtype = unchosen;
}

}  // namespace

void settle_numerics(RunOptions& options, const ModelBundle& model, const ComputeMachine& machine) {
  keep_what_records_have(options, machine.gpu.has_value());
  if (options.files.shard.count == 1) return;
  choose_as_other_shards(options, kv_dtype_on(machine, std::nullopt, model.weights_dtype));
}

}  // namespace triphase
