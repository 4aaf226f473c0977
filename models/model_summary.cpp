#include "models/model_summary.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"
#include "models/config/tensor_manifest.h"
#include "models/files/model_file_names.h"
#include "models/weights/weight_block.h"
#include "models/weights/weight_lookup.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

void describe_files(const WeightFiles& files, ModelSummary& summary) {
  std::map<std::string_view, DtypeShare> shares;
  files.for_each([&](const FileTensor& tensor) {
    const TensorRecord& record = tensor.record;
    DtypeShare& share = shares[record.type->name];
    share.name = record.type->name;
    ++share.tensors;
    share.bytes += record.bytes;
    ++summary.tensor_count;
    summary.tensors.push_back({escape_untrusted(record.name, kMaxTensorName),
                               std::string(record.type->name),
                               {record.shape.begin(), record.shape.end()},
                               record.bytes,
                               files.file_name(tensor.file)});
    return true;
  });
  for (auto& [name, share] : shares) summary.dtypes.push_back(std::move(share));
  std::stable_sort(summary.dtypes.begin(), summary.dtypes.end(),
                   [](const DtypeShare& a, const DtypeShare& b) { return a.bytes > b.bytes; });
  for (std::size_t file = 0; file < files.file_count(); ++file) {
    summary.weight_files.push_back(files.file_name(file));
    summary.file_bytes += files.file_bytes(file);
  }
}

}  // namespace

ModelSummary summarise_shape(const ModelConfig& config) {
  ModelSummary summary;
  summary.model_type = config.model_type;
  summary.architecture = config.architecture;
  summary.config = config;
  summary.parameters = parameter_count(config);
  summary.weights_dtype = config.declared_dtype.value_or(DType::kF16);
  summary.weight_bytes = weight_bytes(config, summary.weights_dtype);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kInt8}) {
    std::uint64_t token = config.kv_bytes_per_token(dtype);
    if (dtype == DType::kInt8) {
      // Two F32 numbers of every channel of K and V, for each block.
      token += config.kv_bytes_per_token(DType::kF32) * 2 /
               static_cast<std::uint64_t>(default_block_tokens(dtype));
    }
    const std::uint64_t layer = token / static_cast<std::uint64_t>(config.layers);
    KvCost cost{dtype, token, token * static_cast<std::uint64_t>(config.max_positions), 0};
    for (std::int64_t at = 0; at < config.layers; ++at) {
      const std::int64_t window = config.window(at);
      cost.within_windows +=
          layer * static_cast<std::uint64_t>(window > 0 ? std::min(window, config.max_positions)
                                                        : config.max_positions);
    }
    summary.kv.push_back(cost);
  }
  return summary;
}

ModelSummary summarise_model(const ModelDirectory& model) {
  ModelSummary summary = summarise_shape(model.config);
  summary.notes = model.notes;
  std::ranges::copy_if(
      model.names, std::back_inserter(summary.tokenizer_files),
      [](const std::string& name) { return std::ranges::count(kTokenizerFiles, name) != 0; });
  if (!model.files) return summary;
  describe_files(*model.files, summary);
  const std::vector<WeightEntry> manifest = weight_manifest(model.config);
  const WeightLookup lookup = find_weights(*model.files, model.config, manifest, summary.notes);
  summary.weight_bytes = 0;
  std::map<DType, std::uint64_t> bytes;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const std::uint64_t size = entry_bytes(manifest[i], lookup.dtypes[i]);
    summary.weight_bytes += aligned_bytes(size);
    if (!manifest[i].vector) bytes[lookup.dtypes[i]] += size;
  }
  summary.weights_dtype =
      std::ranges::max_element(bytes, {}, [](const auto& of) { return of.second; })->first;
  return summary;
}

}  // namespace triphase
