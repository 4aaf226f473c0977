#include "runtime/context/context_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/content_hash.h"
#include "base/json_writer.h"
#include "models/files/file_reader.h"
#include "models/files/safetensors.h"
#include "runtime/context/context_facts.h"

namespace triphase {
namespace {

constexpr std::string_view kCode = kClustersCode;
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 20;
constexpr FileErrors kErrors{ErrorRole::kInput, kCode};

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

// One tensor of the file and where its numbers are, in the order of the file.
struct Part {
  std::string_view name;
  std::string_view type;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

template <class Number>
std::string_view bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string header_of(const std::vector<Part>& parts) {
  std::string json;
  JsonWriter writer(json, JsonWriter::Layout::kCompact);
  writer.begin_object();
  std::uint64_t begin = 0;
  for (const Part& part : parts) {
    const std::uint64_t end = begin + part.bytes.size();
    writer.key(part.name).begin_object().member("dtype", part.type);
    writer.key("shape").array(part.shape);
    writer.key("data_offsets").array(std::array{begin, end});
    writer.end();
    begin = end;
  }
  writer.end();
  // The format likes its data aligned; blanks at the end are allowed.
  while (json.size() % 8 != 0) json += ' ';
  const std::uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

// Counts are whole numbers: kept as such in the file.
std::vector<std::int32_t> whole(const std::vector<float>& counts) {
  return {counts.begin(), counts.end()};
}

// The numbers' file: header checked against what the JSON announces, then tensor by tensor.
class DataReader {
 public:
  DataReader(const std::string& directory, const ContextFacts& facts)
      : path_((std::filesystem::path(directory) / kClustersData).string()),
        file_(FileReader::open(DirectoryHandle(directory), std::string(kClustersData), kErrors)) {
    if (file_.size() != facts.data_bytes) {
      fail("data.bytes", fmt::to_string(file_.size()), fmt::to_string(facts.data_bytes));
    }
    const std::string hash = hash_of_file();
    if (hash != facts.data_hash) fail("data.hash", hash, facts.data_hash);
    try {
      header_ = read_safetensors_header(file_, /*allow_trailing_bytes=*/false);
    } catch (const Error& error) {
      if (error.role() != ErrorRole::kModel) throw;
      fail(error.field(), error.found(), error.expected());
    }
  }

  // The numbers of one tensor, which must have this type and shape.
  template <class Number>
  std::vector<Number> read(std::string_view name, const std::vector<std::int64_t>& shape) {
    const std::string_view type = std::is_same_v<Number, float> ? "F32" : "I32";
    const std::optional<TensorRecord> tensor = header_.find(name);
    if (!tensor) fail(name, "missing", "a tensor");
    ++known_;
    const bool same = tensor->type->name == type &&
                      std::ranges::equal(tensor->shape, shape, {}, {},
                                         [](auto s) { return static_cast<std::uint64_t>(s); });
    if (!same) {
      fail(name, fmt::format("{} [{}]", tensor->type->name, fmt::join(tensor->shape, ", ")),
           fmt::format("{} [{}]", type, fmt::join(shape, ", ")));
    }
    std::vector<Number> numbers(tensor->bytes / sizeof(Number));
    file_.read(tensor->begin, std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  void finish() const {
    if (header_.size() == known_) return;
    fail("tensors", fmt::to_string(header_.size()), fmt::to_string(known_));
  }

  [[noreturn]] void fail(std::string_view field, std::string_view found,
                         std::string_view expected) const {
    throw Error(ErrorRole::kInput, kCode, field)
        .file(path_)
        .found(found)
        .expected(expected)
        .hint("make the clusters again with triphase cluster");
  }

 private:
  [[nodiscard]] std::string hash_of_file() const {
    ContentHasher hasher;
    std::string buffer(std::min<std::uint64_t>(file_.size(), std::uint64_t{1} << 20), 0);
    for (std::uint64_t begin = 0; begin < file_.size();) {
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file_.size() - begin)));
      file_.read(begin, std::as_writable_bytes(piece));
      hasher.add({piece.data(), piece.size()});
      begin += piece.size();
    }
    return hasher.text();
  }

  std::string path_;
  FileReader file_;
  SafetensorsHeader header_;
  std::size_t known_ = 0;
};

// Every number of `numbers` within [0, end).
void check_below(const DataReader& data, std::string_view name,
                 const std::vector<std::int32_t>& numbers, std::int64_t end) {
  const auto bad = std::ranges::find_if(numbers, [&](std::int32_t n) { return n < 0 || n >= end; });
  if (bad == numbers.end()) return;
  data.fail(fmt::format("{}[{}]", name, bad - numbers.begin()), fmt::to_string(*bad),
            fmt::format("0 to {}", end - 1));
}

void read_level_numbers(DataReader& data, std::string_view name, const MethodShape& shape,
                        ContextClusters::Level& level) {
  const std::string means = fmt::format("{}_means", name);
  level.means =
      data.read<float>(means, {shape.layers, shape.kv_heads, level.count, shape.head_dim});
  const auto bad =
      std::ranges::find_if(level.means, [](float value) { return !std::isfinite(value); });
  if (bad != level.means.end()) {
    data.fail(fmt::format("{}[{}]", means, bad - level.means.begin()), fmt::to_string(*bad),
              "a finite number");
  }
  const auto keys = data.read<std::int32_t>(fmt::format("{}_keys", name),
                                            {shape.layers, shape.kv_heads, level.count});
  level.keys.assign(keys.begin(), keys.end());
}

// The number of keys that a cluster states must be the number that refer to it.
void check_keys(const DataReader& data, std::string_view name, const std::vector<float>& there,
                const std::vector<float>& counted) {
  for (std::size_t at = 0; at < there.size(); ++at) {
    if (there[at] == counted[at]) continue;
    data.fail(fmt::format("{}_keys[{}]", name, at), fmt::format("{:.0f}", there[at]),
              fmt::format("{:.0f}, as the labels have", counted[at]));
  }
}

void read_numbers(DataReader& data, const ContextFacts& facts, std::int64_t vocabulary,
                  FixedContext& context) {
  ContextClusters& clusters = context.clusters;
  const MethodShape& shape = context.shape;
  context.tokens = data.read<TokenId>("token_ids", {facts.tokens});
  check_below(data, "token_ids", context.tokens, vocabulary);
  read_level_numbers(data, "fine", shape, clusters.fine);
  clusters.labels =
      data.read<std::int32_t>("labels", {shape.layers, shape.kv_heads, clusters.clustered_tokens});
  check_below(data, "labels", clusters.labels, clusters.fine.count);
  std::vector<float> counted(clusters.fine.keys.size());
  for (std::size_t at = 0; at < clusters.labels.size(); ++at) {
    const auto row = static_cast<std::int64_t>(at) / clusters.clustered_tokens;
    ++counted[row * clusters.fine.count + clusters.labels[at]];
  }
  check_keys(data, "fine", clusters.fine.keys, counted);
  if (context.options.levels == 2) {
    read_level_numbers(data, "coarse", shape, clusters.coarse);
    clusters.parents =
        data.read<std::int32_t>("parents", {shape.layers, shape.kv_heads, clusters.fine.count});
    check_below(data, "parents", clusters.parents, clusters.coarse.count);
    counted.assign(clusters.coarse.keys.size(), 0.0F);
    for (std::size_t at = 0; at < clusters.parents.size(); ++at) {
      const auto row = static_cast<std::int64_t>(at) / clusters.fine.count;
      counted[row * clusters.coarse.count + clusters.parents[at]] += clusters.fine.keys[at];
    }
    check_keys(data, "coarse", clusters.coarse.keys, counted);
  }
  data.finish();
}

void require_model(const FixedContext& context, const ModelIdentity& identity,
                   const ModelConfig& config, const std::string& file) {
  const auto require = [&](std::string_view field, const std::string& there,
                           const std::string& model) {
    if (there == model) return;
    throw Error(ErrorRole::kInput, kCode, field)
        .file(file)
        .found(there.empty() ? "none" : there)
        .expected(fmt::format("{} of {}", model.empty() ? "none" : model, identity.path))
        .hint("make the clusters again with triphase cluster and this model");
  };
  require("model.fingerprint", context.model_fingerprint, identity.fingerprint);
  // Token ids need none.
  if (!context.tokenizer_fingerprint.empty()) {
    require("model.tokenizer", context.tokenizer_fingerprint, identity.tokenizer);
  }
  const auto number = [](std::int64_t value) { return fmt::to_string(value); };
  require("model.layers", number(context.shape.layers), number(config.layers));
  require("model.heads", number(context.shape.heads), number(config.heads));
  require("model.kv_heads", number(context.shape.kv_heads), number(config.kv_heads));
  require("model.head_dim", number(context.shape.head_dim), number(config.head_dim));
}

}  // namespace

ContextFileSizes write_fixed_context(FileOps& ops, const std::string& directory,
                                     const FixedContext& context) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) throw_io_error(directory, "open", failed.value());
  const ContextClusters& clusters = context.clusters;
  const MethodShape& shape = context.shape;
  const std::vector<std::int32_t> fine_keys = whole(clusters.fine.keys);
  const std::vector<std::int32_t> coarse_keys = whole(clusters.coarse.keys);
  const auto rows = [&](std::initializer_list<std::int64_t> rest) {
    std::vector<std::int64_t> all = {shape.layers, shape.kv_heads};
    all.insert(all.end(), rest);
    return all;
  };
  std::vector<Part> parts = {
      {"token_ids", "I32", {std::ssize(context.tokens)}, bytes_of(context.tokens)},
      {"fine_means", "F32", rows({clusters.fine.count, shape.head_dim}),
       bytes_of(clusters.fine.means)},
      {"fine_keys", "I32", rows({clusters.fine.count}), bytes_of(fine_keys)},
      {"labels", "I32", rows({clusters.clustered_tokens}), bytes_of(clusters.labels)}};
  if (context.options.levels == 2) {
    parts.push_back({"coarse_means", "F32", rows({clusters.coarse.count, shape.head_dim}),
                     bytes_of(clusters.coarse.means)});
    parts.push_back({"coarse_keys", "I32", rows({clusters.coarse.count}), bytes_of(coarse_keys)});
    parts.push_back({"parents", "I32", rows({clusters.fine.count}), bytes_of(clusters.parents)});
  }
  const std::string header = header_of(parts);
  std::vector<std::string_view> texts = {header};
  for (const Part& part : parts) texts.push_back(part.bytes);
  ContextFileSizes sizes;
  ContentHasher hasher;
  for (const std::string_view text : texts) {
    hasher.add(text);
    sizes.data += text.size();
  }
  const std::string json =
      context_facts_json(context, std::ssize(context.tokens), sizes.data, hasher.text());
  sizes.json = json.size();
  const std::filesystem::path folder(directory);
  TemporaryFile data(ops, folder / kClustersData, 0666);
  for (const std::string_view text : texts) data.write(text);
  data.put_in_place();
  write_file_atomically(ops, folder / kClustersJson, json, 0666);
  return sizes;
}

FixedContext read_fixed_context(const std::string& directory, const ModelIdentity& identity,
                                const ModelConfig& config) {
  const std::filesystem::path folder(directory);
  const std::string file = (folder / kClustersJson).string();
  std::error_code failed;
  const auto refuse = [&](std::string_view found) {
    throw Error(ErrorRole::kInput, kCode, "directory")
        .file(directory)
        .found(found)
        .expected("what triphase cluster has written");
  };
  if (!std::filesystem::is_directory(folder, failed)) {
    refuse(failed && failed != std::errc::no_such_file_or_directory ? failed.message()
           : std::filesystem::exists(folder, failed)                ? "not a directory"
                                                                    : "nothing there");
  }
  const auto require_file = [&](std::string_view name) {
    if (!path_exists(folder / name)) refuse(fmt::format("one without {}", name));
  };
  require_file(kClustersJson);
  const std::string text = read_small_file(DirectoryHandle(directory), std::string(kClustersJson),
                                           kMaxJsonBytes, kErrors);
  ContextFacts facts = parse_context_facts(text, file);
  require_model(facts.context, identity, config, file);
  require_file(kClustersData);
  DataReader data(directory, facts);
  FixedContext context = std::move(facts.context);
  read_numbers(data, facts, config.vocab_size, context);
  context.path = directory;
  context.hash = hash_text(text);
  return context;
}

}  // namespace triphase
