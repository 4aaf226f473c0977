#include "models/files/weight_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "models/files/safetensors.h"

namespace triphase {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

bool safe_shard_name(std::string_view name) {
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Error index_error(std::string_view field, std::string_view file) {
  Error error(ErrorRole::kModel, "E-ST-INDEX", field);
  error.file(file);
  return error;
}

}  // namespace

std::optional<std::uint32_t> WeightIndex::shard_of(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      tensors, name, {}, [](const auto& tensor) { return std::string_view(tensor.first); });
  if (at == tensors.end() || at->first != name) return std::nullopt;
  return at->second;
}

WeightIndex parse_weight_index(std::string_view text, std::string_view file) {
  const Json root =
      parse_json_file(text, file, ErrorRole::kModel, "E-ST-INDEX", {.max_values = 2 * kMaxTensors});
  const Json* map = root.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    throw index_error("weight_map", file)
        .found(!root.is_object() ? root.describe()
               : map == nullptr  ? "missing"
                                 : map->describe())
        .expected("an object of tensor names and shard names");
  }
  const JsonObject& entries = *map->object();
  if (entries.empty()) throw index_error("weight_map", file).found("empty").expected("tensors");
  if (entries.size() > kMaxTensors) {
    throw index_error("weight_map", file)
        .found(fmt::format("{} tensors", entries.size()))
        .expected(fmt::format("at most {}", kMaxTensors));
  }
  std::set<std::string_view> shards;
  for (const auto& [name, shard] : entries) {
    const std::string field = fmt::format("weight_map: {}", escape_untrusted(name));
    if (name.size() > kMaxTensorName) {
      throw index_error(field, file)
          .found(fmt::format("a name of {} bytes", name.size()))
          .expected(fmt::format("at most {}", kMaxTensorName));
    }
    const std::string* shard_name = shard.string();
    if (shard_name == nullptr || !safe_shard_name(*shard_name)) {
      throw index_error(field, file)
          .found(shard.describe())
          .expected("a file name in this directory that ends in .safetensors");
    }
    shards.insert(*shard_name);
    if (shards.size() > kMaxShards) {
      throw index_error("weight_map", file)
          .found(fmt::format("more than {} shards", kMaxShards))
          .expected(fmt::format("at most {}", kMaxShards));
    }
  }
  WeightIndex index{.shards = {shards.begin(), shards.end()}, .tensors = {}};
  index.tensors.reserve(entries.size());
  for (const auto& [name, shard] : entries) {
    const auto at = std::lower_bound(index.shards.begin(), index.shards.end(), *shard.string());
    index.tensors.emplace_back(name, static_cast<std::uint32_t>(at - index.shards.begin()));
  }
  std::sort(index.tensors.begin(), index.tensors.end());
  return index;
}

}  // namespace triphase
