#include "models/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "models/config/tensor_manifest.h"
#include "models/files/weight_files.h"
#include "models/weights/mxfp4.h"
#include "models/weights/tensor_scan.h"
#include "models/weights/weight_block.h"
#include "models/weights/weight_lookup.h"
#include "models/weights/weight_upload.h"

namespace triphase {
namespace {

constexpr std::size_t kChunkBytes = WeightUpload::kBufferBytes;

struct Slot {
  std::byte* data = nullptr;
  bool on_host = false;
};

// place_rows() of gates and ups in turn: sorted where they lie, so that two copies do for each
// matrix.
template <class Put>
void place_gate_up(const TensorPart& part, std::byte* from, std::int64_t first, std::int64_t rows,
                   std::size_t row_bytes, const Put& put) {
  const std::int64_t each = part.rows_of_each();
  std::vector<std::byte> sorted(static_cast<std::size_t>(rows) * row_bytes);
  for (std::int64_t row = first; row < first + rows;) {
    const std::int64_t within = row % each;
    const std::int64_t count = std::min(each - within, first + rows - row);
    const std::int64_t first_gate = (within + 1) / 2;
    const std::int64_t first_up = within / 2;
    const std::int64_t gates = (within + count + 1) / 2 - first_gate;
    std::byte* own = from + static_cast<std::size_t>(row - first) * row_bytes;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t pair = (within + i) / 2;
      const std::int64_t to = (within + i) % 2 == 0 ? pair - first_gate : gates + pair - first_up;
      std::memcpy(sorted.data() + static_cast<std::size_t>(to) * row_bytes,
                  own + static_cast<std::size_t>(i) * row_bytes, row_bytes);
    }
    std::memcpy(own, sorted.data(), static_cast<std::size_t>(count) * row_bytes);
    const std::int64_t matrix = part.first_row + row - within;
    put(matrix + first_gate, row - first, gates);
    put(matrix + each / 2 + first_up, row - first + gates, count - gates);
    row += count;
  }
}

// Puts `rows` rows of `row_bytes` bytes, which are rows [first, first + rows) of the tensor, into
// their places in the slot.
void place_rows(WeightUpload& upload, const ModelConfig& config, const TensorPart& part,
                const Slot& slot, std::byte* from, std::int64_t first, std::int64_t rows,
                std::size_t row_bytes) {
  const auto put = [&](std::int64_t to, std::int64_t skipped, std::int64_t count) {
    upload.put(slot.data + static_cast<std::size_t>(to) * row_bytes,
               from + static_cast<std::size_t>(skipped) * row_bytes,
               static_cast<std::size_t>(count) * row_bytes, slot.on_host);
  };
  if (part.order == RowOrder::kPlain) {
    put(part.first_row + first, 0, rows);
    return;
  }
  if (part.order == RowOrder::kRotaryNeighbours) {
    const std::int64_t rotated = config.rope->rotary_dim;
    for (std::int64_t row = first; row < first + rows; ++row) {
      const std::int64_t channel = row % config.head_dim;
      const std::int64_t half = channel % 2 * (rotated / 2) + channel / 2;
      put(part.first_row + row - channel + (channel < rotated ? half : channel), row - first, 1);
    }
    return;
  }
  if (part.order == RowOrder::kInterleavedGateUp) {
    place_gate_up(part, from, first, rows, row_bytes, put);
    return;
  }
  // Source row = (kv_head * (queries + 2) + which) * head_dim + channel: query heads, then k, v.
  const std::int64_t queries = config.heads / config.kv_heads;
  const std::int64_t head_dim = config.head_dim;
  for (std::int64_t row = first; row < first + rows;) {
    const std::int64_t group = row / head_dim;
    const std::int64_t channel = row % head_dim;
    const std::int64_t run = std::min(head_dim - channel, first + rows - row);
    const std::int64_t kv_head = group / (queries + 2);
    const std::int64_t which = group % (queries + 2);
    std::int64_t head = kv_head * queries + which;
    if (which >= queries) head = config.heads + (which - queries) * config.kv_heads + kv_head;
    put(head * head_dim + channel, row - first, run);
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
        options_(options),
        notes_(notes),
        progress_(progress) {}

  std::unique_ptr<ModelWeights> load() {
    const std::vector<WeightEntry> manifest = weight_manifest(config_);
    const WeightLookup lookup = find_weights(files_, config_, manifest, notes_);
    total_ = lookup.bytes;
    auto weights = std::make_unique<WeightBlock>(config_, manifest, lookup.dtypes, homes_);
    // Ends before the weights do, whatever happens: copies into them may be under way.
    WeightUpload upload(*homes_.device);
    for (std::size_t i = 0; i < manifest.size(); ++i) {
      const WeightEntry& entry = manifest[i];
      const Slot slot{weights->slot(i), weights->on_host(i)};
      if (entry.parts.empty()) {
        upload.put_constant(slot.data, entry.rows, 1.0F, slot.on_host);
        continue;
      }
      const DType target = entry.vector ? DType::kF32 : lookup.dtypes[i];
      for (std::size_t part = 0; part < entry.parts.size(); ++part) {
        const FoundTensor& tensor = lookup.tensors[i][part];
        if (tensor.scales) {
          load_mxfp4(entry, entry.parts[part], tensor, slot, upload);
        } else if (entry.parts[part].transposed) {
          load_transposed(entry, entry.parts[part], tensor, target, slot, upload);
        } else {
          load_part(entry, entry.parts[part], tensor, target, slot, upload);
        }
      }
    }
    upload.finish();
    if (progress_) progress_(total_, total_);
    return weights;
  }

 private:
  // `read` fills a room with so many rows of the tensor from one on, in the slot's type `target`,
  // and returns the bytes that it read.
  template <class Read>
  void load_rows(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor,
                 DType target, const Slot& slot, WeightUpload& upload, const Read& read) {
    const auto cols = static_cast<std::size_t>(entry.cols);
    const std::size_t row_bytes = cols * dtype_bytes(target);
    const auto chunk_rows = static_cast<std::int64_t>(kChunkBytes / row_bytes);
    TRIPHASE_CHECK(chunk_rows > 0, "a row larger than the staging buffer");
    NonFinite bad;
    for (std::int64_t row = 0; row < part.rows; row += chunk_rows) {
      const auto first = static_cast<std::size_t>(row);
      const auto rows = static_cast<std::size_t>(std::min(chunk_rows, part.rows - row));
      const std::span room(upload.room(rows * row_bytes), rows * row_bytes);
      done_ += read(first, rows, room);
      if (options_.check != WeightOptions::Check::kOff) {
        scan_non_finite(target, room, first * cols, bad);
      }
      if (entry.factor != 1.0F) {
        TRIPHASE_CHECK(target == DType::kF32, "factors of vectors");
        const std::span values(reinterpret_cast<float*>(room.data()), rows * cols);
        for (float& value : values) value *= entry.factor;
      }
      place_rows(upload, config_, part, slot, room.data(), row, static_cast<std::int64_t>(rows),
                 row_bytes);
      if (progress_) progress_(done_, total_);
    }
    if (bad.count != 0) report_non_finite(tensor, bad);
  }

  void load_part(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor,
                 DType target, const Slot& slot, WeightUpload& upload) {
    const DType source = *tensor.record.type->dtype;
    const auto cols = static_cast<std::size_t>(entry.cols);
    const std::size_t row_bytes = cols * dtype_bytes(source);
    const auto read = [&](std::size_t row, std::size_t rows, std::span<std::byte> room) {
      // What is converted passes through memory of its own.
      if (source != target) unconverted_.resize(rows * row_bytes);
      const std::span bytes(source == target ? room.data() : unconverted_.data(), rows * row_bytes);
      files_.read(tensor, row * row_bytes, bytes);
      if (source != target) {
        convert_to_f32(source, bytes, {reinterpret_cast<float*>(room.data()), rows * cols});
      }
      return bytes.size();
    };
    load_rows(entry, part, tensor, target, slot, upload, read);
  }

  void load_mxfp4(const WeightEntry& entry, const TensorPart& part, const FoundTensor& tensor,
                  const Slot& slot, WeightUpload& upload) {
    const auto cols = static_cast<std::size_t>(entry.cols);
    const std::size_t blocks_row = cols / 2;
    const std::size_t scales_row = cols / static_cast<std::size_t>(kMxfp4Group);
    const auto read = [&](std::size_t row, std::size_t rows, std::span<std::byte> room) {
      unconverted_.resize(rows * (blocks_row + scales_row));
      const std::span blocks(unconverted_.data(), rows * blocks_row);
      const std::span scales(unconverted_.data() + blocks.size(), rows * scales_row);
      files_.read(tensor, row * blocks_row, blocks);
      files_.read(*tensor.scales, row * scales_row, scales);
      dequantize_mxfp4(blocks, scales,
                       {reinterpret_cast<std::uint16_t*>(room.data()), rows * cols});
      return unconverted_.size();
    };
    load_rows(entry, part, tensor, DType::kBF16, slot, upload, read);
  }

  // Each matrix passes through memory whole.
  void load_transposed(const WeightEntry& entry, const TensorPart& part, const FileTensor& tensor,
                       DType target, const Slot& slot, WeightUpload& upload) {
    const DType source = *tensor.record.type->dtype;
    const std::int64_t rows = part.rows_of_each();
    const auto elements = static_cast<std::size_t>(rows * entry.cols);
    const std::size_t size = elements * dtype_bytes(source);
    std::vector<std::byte> whole;
    std::vector<std::byte> wide(source == target ? 0 : elements * sizeof(float));
    NonFinite bad;
    for (std::int64_t first = 0; first < part.rows; first += rows) {
      const auto before = static_cast<std::uint64_t>(first * entry.cols);
      whole.resize(size);
      files_.read(tensor, before * dtype_bytes(source), whole);
      if (options_.check != WeightOptions::Check::kOff) {
        scan_non_finite(source, whole, before, bad);
      }
      if (source != target) {
        convert_to_f32(source, whole, {reinterpret_cast<float*>(wide.data()), elements});
      }
      place_transposed(entry, part, source == target ? whole : wide, first, dtype_bytes(target),
                       slot, upload);
      done_ += size;
      if (progress_) progress_(done_, total_);
    }
    if (bad.count != 0) report_non_finite(tensor, bad);
  }

  // `from` is [cols, rows], a matrix of the part's whose first row is `first`.
  void place_transposed(const WeightEntry& entry, const TensorPart& part,
                        std::span<const std::byte> from, std::int64_t first, std::size_t element,
                        const Slot& slot, WeightUpload& upload) {
    constexpr std::size_t kTile = 64;  // columns whose cache lines stay until they are used up
    const auto rows = static_cast<std::size_t>(part.rows_of_each());
    const auto cols = static_cast<std::size_t>(entry.cols);
    const std::size_t chunk = kChunkBytes / (cols * element);
    TRIPHASE_CHECK(chunk > 0, "a row larger than the staging buffer");
    for (std::size_t row = 0; row < rows; row += chunk) {
      const std::size_t count = std::min(chunk, rows - row);
      std::byte* room = upload.room(count * cols * element);
      for (std::size_t tile = 0; tile < cols; tile += kTile) {
        for (std::size_t i = 0; i < count; ++i) {
          for (std::size_t c = tile; c < std::min(cols, tile + kTile); ++c) {
            std::memcpy(room + (i * cols + c) * element, &from[(c * rows + row + i) * element],
                        element);
          }
        }
      }
      place_rows(upload, config_, part, slot, room, first + static_cast<std::int64_t>(row),
                 static_cast<std::int64_t>(count), cols * element);
    }
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

  const WeightFiles& files_;
  const ModelConfig& config_;
  const WeightHomes& homes_;
  const WeightOptions& options_;
  Notes& notes_;
  const LoadProgress& progress_;
  std::vector<std::byte> unconverted_;
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

std::vector<std::uint64_t> layer_bytes(const ModelConfig& config, DType dtype) {
  std::vector<std::uint64_t> by_layer(static_cast<std::size_t>(config.layers));
  for (const WeightEntry& entry : weight_manifest(config)) {
    if (entry.layer < 0) continue;
    by_layer[entry.layer] += aligned_bytes(entry_bytes(entry, dtype));
  }
  return by_layer;
}

}  // namespace triphase
