#include "runtime/engine/model_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/config/model_config.h"
#include "runtime/options/option_table.h"

namespace triphase {
namespace {

// Whether it is there and can be looked at.
bool is_there(const std::filesystem::path& path) {
  std::error_code failed;
  return std::filesystem::exists(path, failed);
}

constexpr std::string_view kGguf =
    "GGUF files are not read; give the Hugging Face directory that this one was made from";

// Of a directory without config.json.
std::string directory_hint(const std::filesystem::path& path) {
  bool gguf = false;
  std::string below;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(path, failed), end; !failed && at != end;
       at.increment(failed)) {
    gguf = gguf || at->path().extension() == ".gguf";
    // The Hub's cache has models--OWNER--NAME/snapshots/REVISION/config.json.
    const bool snapshots = at->path().filename() == "snapshots";
    std::filesystem::directory_iterator inner(at->path(), failed);
    for (; snapshots && !failed && inner != end; inner.increment(failed)) {
      if (is_there(inner->path() / "config.json")) below = inner->path().string();
    }
    if (is_there(at->path() / "config.json")) below = at->path().string();
    failed.clear();
  }
  if (!below.empty()) return fmt::format("did you mean {}?", below);
  if (gguf) return std::string(kGguf);
  return fmt::format("{} is no model directory as the Hub has them", path.string());
}

std::string hub_hint(std::string_view name) {
  for (const std::string_view site : {"https://huggingface.co/", "https://hf.co/", "hf.co/"}) {
    if (name.starts_with(site)) name.remove_prefix(site.size());
  }
  name = name.substr(0, name.find(':'));
  const auto slashes = std::ranges::count(name, '/');
  if (name.empty() || slashes > 1 || name.front() == '/' || name.front() == '.' ||
      name.back() == '/') {
    return "";
  }
  return fmt::format("models of the Hub are downloaded first: hf download {}{} --local-dir DIR",
                     slashes == 0 ? "OWNER/" : "", name);
}

}  // namespace

std::string nearest_shape(const std::string& name) {
  const std::vector<std::string> names = builtin_shape_names();
  const std::vector<std::string_view> views(names.begin(), names.end());
  return nearest_name(name, views);
}

std::string model_hint(const std::string& path) {
  if (path.ends_with(".gguf")) return std::string(kGguf);
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  if (!std::filesystem::status_known(status)) return "";
  if (std::filesystem::is_regular_file(status)) return "give the directory that holds the file";
  if (is_there(path + "/adapter_config.json")) {
    return "an adapter is no model; merge it into its base model (peft: merge_and_unload) and give "
           "that directory";
  }
  if (std::filesystem::exists(status)) {
    return is_there(path + "/config.json") ? "" : directory_hint(path);
  }
  if (builtin_shape(path)) return "a built-in shape has no weights; --random-weights makes some";
  const std::string nearest = nearest_shape(path);
  if (nearest.empty()) return hub_hint(path);
  return fmt::format("did you mean the built-in shape {}, with --random-weights?", nearest);
}

}  // namespace triphase
