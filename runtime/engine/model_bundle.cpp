#include "runtime/engine/model_bundle.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "models/files/file_reader.h"
#include "models/files/model_directory.h"
#include "models/files/model_file_names.h"
#include "models/weights/weight_lookup.h"
#include "runtime/context/context_file.h"
#include "runtime/engine/model_hint.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kRandomWeightSeed = 0;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::string text_hash(std::string_view text) {
  return "xxh3:" + hex(XXH3_64bits(text.data(), text.size()));
}

// What makes two directories the same model for a resumed job: the config, every weight header and
// the sizes, not gigabytes of weights.
std::string fingerprint(const std::string& config_text, const WeightFiles* files) {
  std::string identity = config_text;
  if (files != nullptr) {
    for (std::size_t file = 0; file < files->file_count(); ++file) {
      identity += fmt::format("\n{} {} {:x}", files->file_name(file), files->file_bytes(file),
                              files->header_hash(file));
    }
  } else {
    identity += fmt::format("\nrandom weights, seed {}", kRandomWeightSeed);
  }
  return text_hash(identity);
}

// Another checkpoint of the same shape differs nearly everywhere, so hashing parts of every file
// tells, in milliseconds. Damage to single bytes is not looked for.
std::string weights_hash(const WeightFiles& files) {
  constexpr std::uint64_t kParts = 64;
  std::array<std::byte, 4096> part{};
  std::uint64_t hash = 0;
  for (std::size_t file = 0; file < files.file_count(); ++file) {
    const std::uint64_t bytes = files.file_bytes(file);
    for (std::uint64_t at = 0; at < kParts; ++at) {
      // From the first byte to the last; a small file is read whole.
      const std::uint64_t length = std::min<std::uint64_t>(part.size(), bytes);
      const std::uint64_t offset = (bytes - length) * at / (kParts - 1);
      files.read_file(file, offset, std::span(part).first(length));
      hash = XXH3_64bits_withSeed(part.data(), length, hash);
    }
  }
  return "xxh3:" + hex(hash);
}

std::string tokenizer_hash(const DirectoryHandle& directory) {
  std::uint64_t hash = 0;
  for (const std::string_view name : kTokenizerFiles) {
    if (!directory.contains(name)) continue;
    const std::string text = read_small_file(directory, std::string(name), kMaxTokenizerBytes,
                                             {ErrorRole::kModel, "E-TOK-FILE"});
    hash = XXH3_64bits_withSeed(text.data(), text.size(), hash + 1);
  }
  return "xxh3:" + hex(hash);
}

// What chats are rendered by. It is read once, so that a child that starts again has the same.
ChatFiles read_chat_files(const DirectoryHandle& directory) {
  ChatFiles files;
  for (const std::string_view file :
       {std::string_view("chat_template.jinja"), kToolTemplate,
        std::string_view("tokenizer_config.json"), std::string_view("special_tokens_map.json")}) {
    const std::string name(file);
    if (!directory.contains(name)) continue;
    std::string text =
        read_small_file(directory, name, kMaxTokenizerBytes, {ErrorRole::kModel, "E-TOK-FILE"});
    // Anything else in its place would change every prompt.
    if (const std::size_t bad = first_invalid_utf8(text); bad != std::string::npos) {
      throw Error(ErrorRole::kModel, "E-TOK-FILE", "text")
          .file(directory.path() + "/" + name)
          .byte(bad + 1)
          .found(fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text[bad])))
          .expected("UTF-8");
    }
    files[name] = without_bom(text);
  }
  return files;
}

// The element type most of the matrices' bytes have.
DType main_dtype(const WeightFiles& files) {
  std::map<DType, std::uint64_t> bytes;
  files.for_each([&bytes](const FileTensor& tensor) {
    if (tensor.record.type->dtype && tensor.record.shape.size() >= 2) {
      bytes[*tensor.record.type->dtype] += tensor.record.bytes;
    }
    return true;
  });
  DType best = DType::kF32;
  std::uint64_t most = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (bytes[dtype] > most) {
      most = bytes[dtype];
      best = dtype;
    }
  }
  return best;
}

void open_directory(const RunOptions& options, ModelBundle& bundle) {
  ModelDirectory directory = [&options] {
    try {
      return open_model_directory(options.files.model,
                                  {.weights = !options.weights.random,
                                   .allow_trailing_bytes = options.weights.allow_trailing_bytes});
    } catch (Error& error) {
      const std::string hint = error.hint().empty() ? model_hint(options.files.model) : "";
      if (!hint.empty()) error.hint(hint);
      throw;
    }
  }();
  bundle.config = std::move(directory.config);
  bundle.files = std::move(directory.files);
  bundle.generation_config = std::move(directory.generation_config);
  bundle.notes = std::move(directory.notes);
  // Before any output file exists: a missing or misshapen tensor refuses the run.
  if (bundle.files) check_weight_tensors(*bundle.files, bundle.config);
  bundle.tokenizer = load_tokenizer(options.files.model, bundle.config, bundle.notes);
  const DirectoryHandle handle(options.files.model);
  ChatFiles chat_files = read_chat_files(handle);
  std::string templates;  // that have files of their own
  for (const auto& [name, text] : chat_files) {
    if (name.ends_with(".jinja")) templates += text;
  }
  if (!templates.empty()) bundle.identity.chat_template = text_hash(templates);
  bundle.chats =
      std::make_shared<ChatRenderer>(std::move(chat_files), options.reading.max_line_bytes);
  bundle.identity.fingerprint = fingerprint(directory.config_text, bundle.files.get());
  if (bundle.files) bundle.identity.weights = weights_hash(*bundle.files);
  const std::string& generation = directory.generation_config_text;
  if (!generation.empty()) bundle.identity.generation_config = text_hash(generation);
  if (bundle.tokenizer) bundle.identity.tokenizer = tokenizer_hash(handle);
}

void open_shape(const RunOptions& options, ModelBundle& bundle) {
  std::string identity = options.files.model;
  if (auto shape = builtin_shape(options.files.model)) {
    bundle.config = std::move(*shape);
  } else {
    const std::filesystem::path path(options.files.model);
    const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
    std::error_code failed;
    const bool exists = std::filesystem::exists(path, failed);
    if (failed) {
      throw Error(ErrorRole::kModel, "E-CFG-DIR", "--model")
          .file(options.files.model)
          .found(failed.message())
          .expected("a directory or config.json that can be read");
    }
    if (!path.has_filename() || !exists) {
      const std::string nearest = nearest_shape(options.files.model);
      throw Error(ErrorRole::kModel, "E-CFG-DIR", "--model")
          .file(options.files.model)
          .found("neither a directory, a config.json nor a built-in shape")
          .expected(fmt::format("one of {}", fmt::join(builtin_shape_names(), ", ")))
          .hint(nearest.empty() ? model_hint(options.files.model)
                                : fmt::format("did you mean {}?", nearest));
    }
    identity = read_small_file(DirectoryHandle(parent), path.filename().string(), kMaxConfigBytes,
                               kConfigErrors);
    bundle.config = parse_model_config(
        parse_json_file(identity, options.files.model, ErrorRole::kModel, "E-CFG-JSON"), nullptr,
        options.files.model, bundle.notes);
  }
  bundle.identity.fingerprint = fingerprint(identity, nullptr);
}

}  // namespace

ModelBundle open_model(const RunOptions& options) {
  ModelBundle bundle;
  bundle.identity.path = options.files.model;
  bundle.chats = std::make_shared<ChatRenderer>(ChatFiles(), options.reading.max_line_bytes);
  std::error_code failed;
  if (options.weights.random && !std::filesystem::is_directory(options.files.model, failed)) {
    open_shape(options, bundle);
  } else {
    open_directory(options, bundle);
  }
  if (bundle.files) {
    bundle.weights_dtype = main_dtype(*bundle.files);
  } else {
    bundle.weights_dtype = bundle.config.declared_dtype.value_or(DType::kF16);
    bundle.notes.push_back("random weights: completions are noise, speed is real");
  }
  bundle.weight_bytes = weight_bytes(bundle.config, bundle.weights_dtype);
  keep_within_windows(options.attention, bundle);
  if (options.machine.max_context > bundle.config.max_positions) {
    bundle.notes.push_back(fmt::format("--max-context {} is more than the model's {} tokens",
                                       options.machine.max_context, bundle.config.max_positions));
  }
  if (!options.files.fixed_context.empty()) {
    bundle.fixed_context = std::make_shared<FixedContext>(
        read_fixed_context(options.files.fixed_context, bundle.identity, bundle.config));
    bundle.identity.fixed_context = bundle.fixed_context->hash;
  }
  return bundle;
}

void keep_within_windows(const AttentionOptions& attention, ModelBundle& bundle) {
  ModelConfig& config = bundle.config;
  const std::int64_t window = config.window_of_every_layer();
  if (!attention.sparse() || window == 0 || window >= config.max_positions) return;
  if (config.rope && config.rope->original_max_positions == 0) {
    config.rope->original_max_positions = config.max_positions;  // dynamic scaling begins there
  }
  bundle.dense_positions = std::exchange(config.max_positions, window);
  bundle.notes.push_back(
      fmt::format("every layer has a sliding window of {} tokens, and under {} no context may be "
                  "longer; under --attention dense it may",
                  window, attention_name(attention.kind)));
}

std::unique_ptr<ModelWeights> load_model_weights(const ModelBundle& bundle,
                                                 const ModelConfig& config,
                                                 const RunOptions& options,
                                                 const WeightHomes& homes, Progress& progress,
                                                 Log& log) {
  const LoadProgress show = [&progress](std::uint64_t done, std::uint64_t total) {
    progress.update_bytes(done, total);
  };
  if (!bundle.files) {
    return random_weights(config, bundle.weights_dtype, kRandomWeightSeed, homes, show);
  }
  Notes notes;
  auto weights = load_weights(*bundle.files, config, homes, {options.weights.check}, notes, show);
  for (const std::string& note : notes) log.warning(note);
  return weights;
}

}  // namespace triphase
