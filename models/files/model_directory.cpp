#include "models/files/model_directory.h"

#include "base/error.h"
#include "models/weights/weight_lookup.h"

namespace triphase {

ModelDirectory open_model_directory(const std::string& path, const ModelDirectoryOptions& options) {
  const DirectoryHandle directory(path);
  ModelDirectory model;
  model.names = directory.names();
  model.config_text = read_small_file(directory, "config.json", kMaxConfigBytes, kConfigErrors);
  const Json config =
      parse_json_file(model.config_text, "config.json", ErrorRole::kModel, "E-CFG-JSON");
  if (directory.contains("generation_config.json")) {
    model.generation_config_text =
        read_small_file(directory, "generation_config.json", kMaxConfigBytes, kConfigErrors);
    model.generation_config = parse_json_file(
        model.generation_config_text, "generation_config.json", ErrorRole::kModel, "E-CFG-JSON");
  }
  model.config =
      parse_model_config(config, model.generation_config ? &*model.generation_config : nullptr,
                         "config.json", model.notes);
  // peft leaves it where an adapter was saved beside its base model.
  if (directory.contains("adapter_config.json")) {
    model.notes.push_back(
        "model: adapter_config.json is here and not applied; hint: merge the adapter into its base "
        "model (peft: merge_and_unload)");
  }
  if (!options.weights) return model;
  model.files = std::make_unique<WeightFiles>(
      WeightFiles::open(directory, options.allow_trailing_bytes, model.notes));
  settle_by_files(*model.files, model.config, model.notes);
  return model;
}

}  // namespace triphase
