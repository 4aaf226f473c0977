#include "models/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "models/config/tensor_manifest.h"
#include "models/files/weight_files.h"
#include "models/weights/tensor_scan.h"
#include "models/weights/weight_block.h"
#include "models/weights/weight_lookup.h"

namespace triphase {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{8} << 20;

// Copies `rows` rows of `row_bytes` bytes, which are rows [first, first + rows) of the tensor, to
// their places in the slot.
void place_rows(Device& device, Stream& stream, const ModelConfig& config, const WeightEntry& entry,
                const TensorPart& part, std::byte* slot, const std::byte* from, std::int64_t first,
                std::int64_t rows, std::size_t row_bytes) {
  const auto at = [&](std::int64_t row) {
    return slot + static_cast<std::size_t>(row) * row_bytes;
  };
  if (entry.order == RowOrder::kPlain) {
    device.copy(at(part.first_row + first), from, static_cast<std::size_t>(rows) * row_bytes,
                stream);
    return;
  }
  // Source row = (head * 3 + which) * head_dim + channel; which = 0, 1, 2 for q, k, v.
  const std::int64_t head_dim = config.head_dim;
  for (std::int64_t row = first; row < first + rows;) {
    const std::int64_t group = row / head_dim;
    const std::int64_t channel = row % head_dim;
    const std::int64_t run = std::min(head_dim - channel, first + rows - row);
    const std::int64_t target = (group % 3) * config.q_width() + (group / 3) * head_dim + channel;
    device.copy(at(target), from + static_cast<std::size_t>(row - first) * row_bytes,
                static_cast<std::size_t>(run) * row_bytes, stream);
    row += run;
  }
}

class Loader {
 public:
  Loader(const WeightFiles& files, const ModelConfig& config, const WeightHomes& homes,
         const WeightOptions& options, Notes& notes, const LoadProgress& progress)
      : files_(files),
        config_(config),
        homes_(homes),
        device_(*homes.device),
        options_(options),
        notes_(notes),
        progress_(progress),
        staging_(kStagingBytes) {}

  std::unique_ptr<ModelWeights> load() {
    const std::vector<WeightEntry> manifest = weight_manifest(config_);
    const WeightLookup lookup = find_weights(files_, config_, manifest, notes_);
    total_ = lookup.bytes;
    auto weights = std::make_unique<WeightBlock>(config_, manifest, lookup.dtypes, homes_);
    stream_ = device_.make_stream();
    for (std::size_t i = 0; i < manifest.size(); ++i) {
      const WeightEntry& entry = manifest[i];
      if (entry.parts.empty()) {
        fill_vector(device_, *stream_, weights->slot(i), entry.rows, 1.0F);
        continue;
      }
      const DType target = entry.vector ? DType::kF32 : lookup.dtypes[i];
      for (std::size_t part = 0; part < entry.parts.size(); ++part) {
        load_part(entry, entry.parts[part], lookup.tensors[i][part], target, weights->slot(i));
      }
    }
    note_tied_head(lookup);
    if (progress_) progress_(total_, total_);
    return weights;
  }

 private:
  void load_part(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor,
                 DType target, std::byte* slot) {
    const DType source = *tensor.record.type->dtype;
    const auto cols = static_cast<std::size_t>(entry.cols);
    const std::size_t source_row = cols * dtype_bytes(source);
    const auto chunk_rows = static_cast<std::int64_t>(kStagingBytes / source_row);
    TRIPHASE_CHECK(chunk_rows > 0, "a row larger than the staging buffer");
    NonFinite bad;
    for (std::int64_t row = 0; row < part.rows; row += chunk_rows) {
      const std::int64_t rows = std::min(chunk_rows, part.rows - row);
      const std::span<std::byte> bytes =
          std::span(staging_).first(static_cast<std::size_t>(rows) * source_row);
      files_.read(tensor, static_cast<std::uint64_t>(row) * source_row, bytes);
      if (options_.check != WeightOptions::Check::kOff) {
        scan_non_finite(source, bytes, static_cast<std::uint64_t>(row) * cols, bad);
      }
      const std::byte* from = bytes.data();
      if (source != target) {
        widened_.resize(static_cast<std::size_t>(rows) * cols);
        widen_to_f32(source, bytes, widened_);
        from = reinterpret_cast<const std::byte*>(widened_.data());
      }
      place_rows(device_, *stream_, config_, entry, part, slot, from, row, rows,
                 cols * dtype_bytes(target));
      stream_->synchronize();
      done_ += bytes.size();
      if (progress_) progress_(done_, total_);
    }
    if (bad.count != 0) report_non_finite(tensor, bad);
  }

  void report_non_finite(const FileTensor& tensor, const NonFinite& bad) {
    const std::string found = fmt::format(
        "{} values that are NaN or infinite, the first at element {}", bad.count, bad.first);
    if (options_.check == WeightOptions::Check::kRefuse) {
      throw Error(ErrorRole::kModel, "E-ST-NONFINITE", tensor.record.name)
          .file(files_.file_name(tensor.file))
          .found(found)
          .expected("finite weights")
          .hint("--check-weights=warn loads them all the same");
    }
    notes_.push_back(fmt::format("weights: {}: {}", escape_untrusted(tensor.record.name), found));
  }

  // A tied model's file may hold the head as well; the config wins.
  void note_tied_head(const WeightLookup& lookup) {
    if (!lookup.tied_head) return;
    const FileTensor& head = *lookup.tied_head;
    const FileTensor& embedding = lookup.tensors.front().front();
    bool same =
        head.record.type == embedding.record.type && head.record.bytes == embedding.record.bytes;
    std::vector<std::byte> other(same ? kStagingBytes : 0);
    for (std::uint64_t offset = 0; same && offset < head.record.bytes; offset += kStagingBytes) {
      const std::size_t size = std::min<std::uint64_t>(kStagingBytes, head.record.bytes - offset);
      files_.read(head, offset, std::span(staging_).first(size));
      files_.read(embedding, offset, std::span(other).first(size));
      same = std::memcmp(staging_.data(), other.data(), size) == 0;
    }
    if (same) return;
    notes_.push_back(
        fmt::format("weights: {} differs from the embeddings and is ignored: the config ties them",
                    escape_untrusted(head.record.name)));
  }

  const WeightFiles& files_;
  const ModelConfig& config_;
  const WeightHomes& homes_;
  Device& device_;
  const WeightOptions& options_;
  Notes& notes_;
  const LoadProgress& progress_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> staging_;
  std::vector<float> widened_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

std::unique_ptr<ModelWeights> load_weights(const WeightFiles& files, const ModelConfig& config,
                                           const WeightHomes& homes, const WeightOptions& options,
                                           Notes& notes, const LoadProgress& progress) {
  return Loader(files, config, homes, options, notes, progress).load();
}

std::uint64_t weight_bytes(const ModelConfig& config, DType dtype) {
  return manifest_bytes(weight_manifest(config), dtype);
}

std::uint64_t largest_layer_bytes(const ModelConfig& config, DType dtype) {
  std::vector<std::uint64_t> by_layer(static_cast<std::size_t>(config.layers));
  for (const WeightEntry& entry : weight_manifest(config)) {
    if (entry.layer < 0) continue;
    const std::uint64_t size = entry_bytes(entry, dtype);
    by_layer[static_cast<std::size_t>(entry.layer)] +=
        (size + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  }
  return *std::ranges::max_element(by_layer);
}

}  // namespace triphase
