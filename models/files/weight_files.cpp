#include "models/files/weight_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

// Neither index nor model.safetensors: says what is there instead.
[[noreturn]] void throw_no_weights(const DirectoryHandle& directory) {
  const std::vector<std::string> names = directory.names();
  const auto first = [&](auto&& matches) {
    const auto found = std::find_if(names.begin(), names.end(), matches);
    return found == names.end() ? std::string() : *found;
  };
  Error error(ErrorRole::kModel, "E-ST-NONE", "weights");
  error.file(directory.path());
  const auto throw_found = [&](const std::string& name, std::string_view hint) {
    throw error.found(fmt::format("only {}", escape_untrusted(name)))
        .expected("model.safetensors or model.safetensors.index.json")
        .hint(hint);
  };
  const auto starts = [](std::string_view prefix, std::string_view suffix) {
    return [prefix, suffix](const std::string& name) {
      return name.starts_with(prefix) && name.ends_with(suffix);
    };
  };
  if (std::string name = first(starts("", ".incomplete")); !name.empty()) {
    throw_found(name, "the download did not finish: run it again");
  }
  if (std::string name = first(starts("pytorch_model", ".bin")); !name.empty()) {
    throw_found(name, "tools/convert_to_safetensors.py converts it without running its code");
  }
  if (std::string name = first(starts("model-", ".safetensors")); !name.empty()) {
    throw_found(name, "download model.safetensors.index.json, which lists the shards");
  }
  if (std::string name = first(starts("adapter_model", "")); !name.empty()) {
    throw_found(name, "this is an adapter: merge it into its base model first");
  }
  if (std::string name = first(starts("consolidated", "")); !name.empty()) {
    throw_found(name, "use the checkpoint in Hugging Face form");
  }
  if (std::string name = first(starts("", ".gguf")); !name.empty()) {
    throw_found(name, "use the original checkpoint, in Hugging Face form");
  }
  if (std::string name = first(starts("", ".safetensors")); !name.empty()) {
    throw_found(name, "rename it to model.safetensors if it holds the whole model");
  }
  throw error.found("none")
      .expected("model.safetensors or model.safetensors.index.json")
      .hint("--random-weights runs a shape without a checkpoint");
}

}  // namespace

WeightFiles WeightFiles::open(const DirectoryHandle& directory, bool allow_trailing_bytes,
                              Notes& notes) {
  WeightFiles files;
  const bool single = directory.contains(kSingleName);
  if (!directory.contains(kIndexName)) {
    if (!single) throw_no_weights(directory);
    files.add(directory, std::string(kSingleName), allow_trailing_bytes, notes);
  } else {
    const std::string text = read_small_file(directory, std::string(kIndexName), kMaxIndexBytes,
                                             {ErrorRole::kModel, "E-ST-INDEX"});
    files.index_ = parse_weight_index(text, kIndexName);
    for (const std::string& shard : files.index_->shards) {
      if (!directory.contains(shard)) {
        const auto& tensors = files.index_->tensors;
        const auto shard_number = static_cast<std::uint32_t>(&shard - files.index_->shards.data());
        const auto user = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
          return tensor.second == shard_number;
        });
        throw Error(ErrorRole::kModel, "E-ST-INDEX", fmt::format("weight_map: {}", user->first))
            .file(kIndexName)
            .found(fmt::format("{}, which is not in the directory", escape_untrusted(shard)))
            .expected("every shard")
            .hint("download the missing shard");
      }
      files.add(directory, shard, allow_trailing_bytes, notes);
    }
    files.check_index();
    if (single && !std::binary_search(files.index_->shards.begin(), files.index_->shards.end(),
                                      std::string(kSingleName))) {
      notes.push_back(
          fmt::format("weights: {} names the files, {} is ignored", kIndexName, kSingleName));
    }
  }
  for (const std::string_view other : {"consolidated.safetensors", "original"}) {
    if (directory.contains(other)) {
      notes.push_back(fmt::format("weights: {} is ignored", other));
    }
  }
  return files;
}

void WeightFiles::add(const DirectoryHandle& directory, const std::string& name,
                      bool allow_trailing_bytes, Notes& notes) {
  FileReader reader = FileReader::open(directory, name);
  SafetensorsHeader header = read_safetensors_header(reader, allow_trailing_bytes);
  if (header.trailing_bytes() != 0) {
    notes.push_back(fmt::format("weights: {} bytes after the last tensor of {} are ignored",
                                header.trailing_bytes(), name));
  }
  files_.push_back({std::move(reader), std::move(header)});
}

// Every listed tensor is where the index says, and nowhere else.
void WeightFiles::check_index() const {
  for (const auto& [name, shard] : index_->tensors) {
    if (files_[shard].header.find(name)) continue;
    throw Error(ErrorRole::kModel, "E-ST-INDEX", fmt::format("weight_map: {}", name))
        .file(kIndexName)
        .found(fmt::format("{}, which does not hold this tensor",
                           escape_untrusted(index_->shards[shard])))
        .expected("the shard that holds it");
  }
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    for (std::size_t i = 0; i < files_[file].header.size(); ++i) {
      const std::string_view name = files_[file].header[i].name;
      const std::optional<std::uint32_t> shard = index_->shard_of(name);
      if (!shard || *shard == file) continue;
      throw Error(ErrorRole::kModel, "E-ST-INDEX", name)
          .file(file_name(file))
          .found(fmt::format("a tensor that {} gives to {}", kIndexName,
                             escape_untrusted(index_->shards[*shard])))
          .expected("each tensor in one shard");
    }
  }
}

std::optional<FileTensor> WeightFiles::find(std::string_view name) const {
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    const std::optional<TensorRecord> record = files_[file].header.find(name);
    if (record && listed(name, file)) return FileTensor{*record, file};
  }
  return std::nullopt;
}

void WeightFiles::read(const FileTensor& tensor, std::uint64_t offset,
                       std::span<std::byte> out) const {
  TRIPHASE_CHECK(offset <= tensor.record.bytes && out.size() <= tensor.record.bytes - offset,
                 "reading outside a tensor");
  files_[tensor.file].reader.read(tensor.record.begin + offset, out);
}

}  // namespace triphase
