#include "models/weights/weight_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "models/weights/mxfp4.h"

namespace triphase {
namespace {

constexpr std::size_t kListed = 5;  // names in one message

std::optional<std::string_view> prefix_in_use(const WeightFiles& files, TensorNaming naming) {
  for (const std::string_view prefix : tensor_prefixes(naming)) {
    if (files.find(fmt::format("{}{}", prefix, embedding_tensor(naming)))) return prefix;
  }
  return std::nullopt;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

// The output head, which a tied model does without.
std::optional<FileTensor> find_head(const WeightFiles& files, ModelConfig config) {
  config.embedding.tied = false;
  const TensorPart part = weight_manifest(config).back().parts.front();
  const std::optional<FileTensor> head = files.find(part.name);
  return head ? head : files.find(part.other_name);
}

bool same_numbers(const WeightFiles& files, const FileTensor& a, const FileTensor& b) {
  if (a.record.type != b.record.type || a.record.bytes != b.record.bytes) return false;
  constexpr std::uint64_t kChunk = std::uint64_t{4} << 20;
  std::vector<std::byte> of_a(std::min(kChunk, a.record.bytes));
  std::vector<std::byte> of_b(of_a.size());
  for (std::uint64_t offset = 0; offset < a.record.bytes; offset += kChunk) {
    const std::size_t size = std::min(kChunk, a.record.bytes - offset);
    files.read(a, offset, std::span(of_a).first(size));
    files.read(b, offset, std::span(of_b).first(size));
    if (std::memcmp(of_a.data(), of_b.data(), size) != 0) return false;
  }
  return true;
}

class Matcher {
 public:
  Matcher(const WeightFiles& files, const ModelConfig& config) : files_(files), config_(config) {
    prefix_ = std::string(
        prefix_in_use(files, config.naming).value_or(tensor_prefixes(config.naming).front()));
  }

  WeightLookup match(std::span<const WeightEntry> manifest, Notes& notes) {
    refuse_quantized();
    WeightLookup result;
    for (const WeightEntry& entry : manifest) {
      std::vector<FoundTensor>& tensors = result.tensors.emplace_back();
      for (const TensorPart& part : entry.parts) {
        const std::optional<FoundTensor> tensor = find(entry, part);
        if (!tensor) continue;
        use(*tensor, result);
        if (tensor->scales) use(*tensor->scales, result);
        tensors.push_back(*tensor);
      }
      result.dtypes.push_back(common_dtype(tensors));
    }
    if (!missing_.empty()) throw_missing();
    note_extra(notes);
    if (config_.declared_dtype && !result.dtypes.empty() &&
        result.dtypes.front() != *config_.declared_dtype) {
      notes.push_back(fmt::format("weights: the files hold {}, config.json says {}: the files win",
                                  dtype_name(result.dtypes.front()),
                                  dtype_name(*config_.declared_dtype)));
    }
    return result;
  }

 private:
  [[nodiscard]] std::string full_name(const TensorPart& part) const {
    return part.prefixed ? prefix_ + part.name : part.name;
  }

  void use(const FileTensor& tensor, WeightLookup& result) {
    used_.insert(tensor.record.name);
    result.bytes += tensor.record.bytes;
  }

  // Nothing: it is among the missing now.
  [[nodiscard]] std::optional<FoundTensor> find(const WeightEntry& entry, const TensorPart& part) {
    std::optional<FileTensor> tensor = files_.find(full_name(part));
    if (!tensor && !part.other_name.empty()) {
      tensor = files_.find(part.prefixed ? prefix_ + part.other_name : part.other_name);
    }
    if (tensor) {
      check(entry, part, *tensor);
      return FoundTensor{*tensor, std::nullopt};
    }
    if (part.may_be_mxfp4) {
      const std::optional<FileTensor> blocks = files_.find(full_name(part) + "_blocks");
      const std::optional<FileTensor> scales = files_.find(full_name(part) + "_scales");
      if (blocks && scales) {
        check_mxfp4(entry, part, *blocks, true);
        check_mxfp4(entry, part, *scales, false);
        return FoundTensor{*blocks, scales};
      }
      if (blocks) {
        missing_.push_back(full_name(part) + "_scales");
        return std::nullopt;
      }
    }
    missing_.push_back(full_name(part));
    return std::nullopt;
  }

  void check_mxfp4(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor,
                   bool blocks) const {
    if (tensor.record.type->name != "U8") {
      throw Error(ErrorRole::kModel, "E-ST-DTYPE", tensor.record.name)
          .file(files_.file_name(tensor.file))
          .found(tensor.record.type->name)
          .expected("U8");
    }
    std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(part.stacked),
                                     static_cast<std::uint64_t>(part.rows_of_each()),
                                     static_cast<std::uint64_t>(entry.cols / kMxfp4Group)};
    if (blocks) shape.push_back(kMxfp4Group / 2);
    if (entry.cols % kMxfp4Group == 0 && std::ranges::equal(tensor.record.shape, shape)) return;
    throw Error(ErrorRole::kModel, "E-ST-SHAPE", tensor.record.name)
        .file(files_.file_name(tensor.file))
        .found(shape_text(tensor.record.shape))
        .expected(fmt::format("{} ({}, {} and {} / {} in config.json{})", shape_text(shape),
                              part.stacked_from, part.rows_from, part.cols_from, kMxfp4Group,
                              blocks ? ", and the bytes of a block" : ""));
  }

  void check(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor) const {
    const std::optional<DType> dtype = tensor.record.type->dtype;
    if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
      throw Error(ErrorRole::kModel, "E-ST-DTYPE", tensor.record.name)
          .file(files_.file_name(tensor.file))
          .found(tensor.record.type->name)
          .expected("F16, BF16 or F32");
    }
    std::vector<std::uint64_t> shape;
    std::vector<std::string_view> fields;
    if (part.stacked > 0) {
      shape.push_back(static_cast<std::uint64_t>(part.stacked));
      fields.push_back(part.stacked_from);
    }
    shape.push_back(static_cast<std::uint64_t>(part.rows_of_each()));
    fields.push_back(part.rows_from);
    if (!entry.vector) {
      const auto at = part.transposed ? 1 : 0;
      shape.insert(shape.end() - at, static_cast<std::uint64_t>(entry.cols));
      fields.insert(fields.end() - at, part.cols_from);
    }
    if (std::ranges::equal(tensor.record.shape, shape)) return;
    throw Error(ErrorRole::kModel, "E-ST-SHAPE", tensor.record.name)
        .file(files_.file_name(tensor.file))
        .found(shape_text(tensor.record.shape))
        .expected(
            fmt::format("{} ({} in config.json)", shape_text(shape), fmt::join(fields, " and ")));
  }

  static DType common_dtype(std::span<const FoundTensor> tensors) {
    const auto dtype_of = [](const FoundTensor& tensor) {
      return tensor.scales ? DType::kBF16 : *tensor.record.type->dtype;
    };
    if (tensors.empty()) return DType::kF32;
    const DType first = dtype_of(tensors.front());
    for (const FoundTensor& tensor : tensors) {
      if (dtype_of(tensor) != first) return DType::kF32;
    }
    return first;
  }

  void refuse_quantized() const {
    files_.for_each([&](const FileTensor& tensor) {
      if (!quantized_tensor(tensor.record.name)) return true;
      throw Error(ErrorRole::kModel, "E-ST-QUANT", tensor.record.name)
          .file(files_.file_name(tensor.file))
          .found("a quantized weight (GPTQ, AWQ or the like)")
          .expected("weights in F16, BF16 or F32")
          .hint("use the unquantized checkpoint of this model");
    });
  }

  [[noreturn]] void throw_missing() const {
    std::string names;
    for (std::size_t i = 0; i < missing_.size() && i < kListed; ++i) {
      names += (i == 0 ? "" : ", ") + missing_[i];
    }
    if (missing_.size() > kListed) {
      names += fmt::format(" and {} more", missing_.size() - kListed);
    }
    throw Error(ErrorRole::kModel, "E-ST-MISSING", "tensors")
        .found(fmt::format("{} missing in {} file{}: {}", missing_.size(), files_.file_count(),
                           files_.file_count() == 1 ? "" : "s", names))
        .expected(fmt::format("every weight of a {} model", config_.model_type));
  }

  void note_extra(Notes& notes) const {
    std::string names;
    std::size_t count = 0;
    files_.for_each([&](const FileTensor& tensor) {
      const std::string_view name = tensor.record.name;
      if (used_.contains(name) || harmless_extra_tensor(name)) return true;
      if (config_.embedding.tied &&
          (name.ends_with("lm_head.weight") || name == "embed_out.weight")) {
        return true;
      }
      if (count < kListed) names += (count == 0 ? "" : ", ") + escape_untrusted(name);
      ++count;
      return true;
    });
    if (count == 0) return;
    notes.push_back(fmt::format("weights: {} tensor{} of the files {} not part of the model: {}{}",
                                count, count == 1 ? "" : "s", count == 1 ? "is" : "are", names,
                                count > kListed ? ", ..." : ""));
  }

  const WeightFiles& files_;
  const ModelConfig& config_;
  std::string prefix_;
  std::vector<std::string> missing_;
  std::unordered_set<std::string_view> used_;
};

}  // namespace

WeightLookup find_weights(const WeightFiles& files, const ModelConfig& config,
                          std::span<const WeightEntry> manifest, Notes& notes) {
  return Matcher(files, config).match(manifest, notes);
}

void check_weight_tensors(const WeightFiles& files, const ModelConfig& config) {
  Notes unused;  // load_weights gives the same ones
  static_cast<void>(find_weights(files, config, weight_manifest(config), unused));
}

void settle_by_files(const WeightFiles& files, ModelConfig& config, Notes& notes) {
  const auto prefix = prefix_in_use(files, config.naming);
  if (!prefix) return;  // find_weights says what is missing
  const FileTensor embedding =
      *files.find(fmt::format("{}{}", *prefix, embedding_tensor(config.naming)));
  if (const auto dtype = embedding.record.type->dtype) set_embedding_scale(config, *dtype);
  if (!config.embedding.tied) return;
  const std::optional<FileTensor> head = find_head(files, config);
  if (!head || same_numbers(files, *head, embedding)) return;
  config.embedding.tied = false;
  notes.push_back(fmt::format(
      "weights: {} differs from the embeddings in numbers or type, so the two are not tied",
      escape_untrusted(head->record.name)));
}

}  // namespace triphase
