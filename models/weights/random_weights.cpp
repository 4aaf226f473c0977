// Random weights for runs without a checkpoint. Element i of slot s is a pure function of
// (seed, s, i), so that the result does not depend on the number of threads or the device. They are
// made where they lie.

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/random_values.h"
#include "models/weights/weight_block.h"
#include "models/weights/weight_upload.h"
#include "models/weights/weights.h"

namespace triphase {
namespace {

using random_values::mix;

constexpr std::size_t kChunkBytes = std::size_t{32} << 20;  // between two looks at progress
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;   // of one thread

// 16-bit types draw from a table of 65,536 values, because converting each element would cost more
// than everything else.
class MatrixFiller {
 public:
  MatrixFiller(std::uint64_t key, float half_width, DType dtype)
      : key_(key), half_width_(half_width), dtype_(dtype) {
    if (dtype == DType::kF32) return;
    table_.resize(65536);
    for (unsigned draw = 0; draw < table_.size(); ++draw) {
      const float value = random_values::of_16_bits(draw, half_width_);
      table_[draw] = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    }
  }

  // Elements [first, first + bytes / size) of the matrix; first is a multiple of 4.
  void fill(std::byte* out, std::size_t bytes, std::uint64_t first) const {
    if (dtype_ == DType::kF32) {
      fill_each(reinterpret_cast<float*>(out), bytes / sizeof(float), first,
                [this](std::uint64_t word, int part) {
                  return random_values::of_32_bits(word, part, half_width_);
                });
    } else {
      fill_each(reinterpret_cast<std::uint16_t*>(out), bytes / sizeof(std::uint16_t), first,
                [this](std::uint64_t word, int part) {
                  return table_[random_values::draw_of_16_bits(word, part)];
                });
    }
  }

 private:
  template <class T, class Value>
  void fill_each(T* out, std::size_t count, std::uint64_t first, const Value& value) const {
    constexpr int kPerWord = random_values::kPerWord<T>;
    std::size_t i = 0;
    for (; i + kPerWord <= count; i += kPerWord) {
      const std::uint64_t word = mix(key_ + (first + i) / kPerWord);
      for (int part = 0; part < kPerWord; ++part) out[i + part] = value(word, part);
    }
    const std::uint64_t word = mix(key_ + (first + i) / kPerWord);
    for (int part = 0; i < count; ++i, ++part) out[i] = value(word, part);
  }

  std::uint64_t key_;
  float half_width_;
  DType dtype_;
  std::vector<std::uint16_t> table_;
};

int fill_threads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
}

}  // namespace

std::unique_ptr<ModelWeights> random_weights(const ModelConfig& config, DType dtype,
                                             std::uint64_t seed, const WeightHomes& homes,
                                             const LoadProgress& progress) {
  TRIPHASE_CHECK(is_float(dtype), "random weights are F32, F16 or BF16");
  const std::vector<WeightEntry> manifest = weight_manifest(config);
  const std::vector<DType> dtypes(manifest.size(), dtype);
  auto weights = std::make_unique<WeightBlock>(config, manifest, dtypes, homes);
  const float norm_weight = config.norms.kind == Norm::kRmsNormPlusOne ? 0.0F : 1.0F;

  WeightUpload upload(*homes.device);
  ThreadPool pool(fill_threads());
  const std::uint64_t total = weights->bytes + weights->host_bytes;
  std::uint64_t done = 0;
  const auto advance = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const WeightEntry& entry = manifest[i];
    const std::uint64_t size = entry_bytes(entry, dtype);
    const bool on_host = weights->on_host(i);
    std::byte* slot = weights->slot(i);
    if (entry.vector) {
      upload.put_constant(slot, entry.rows,
                          entry.is_norm_weight() ? norm_weight * entry.factor : 0.0F, on_host);
      done += size;
      continue;
    }
    // Uniform values of variance 1/in.
    const auto half_width = static_cast<float>(std::sqrt(3.0 / static_cast<double>(entry.cols)));
    const std::uint64_t key = mix(mix(seed) + i);
    if (!on_host && !homes.device->runs_at_once()) {
      TRIPHASE_CHECK(homes.random_fill != nullptr, "random weights where the host cannot write");
      homes.random_fill(key, half_width, {slot, dtype, entry.rows, entry.cols, entry.cols},
                        upload.stream());
      advance(size);
      continue;
    }
    const MatrixFiller filler(key, half_width, dtype);
    for (std::uint64_t offset = 0; offset < size; offset += kChunkBytes) {
      const std::size_t chunk = std::min<std::uint64_t>(kChunkBytes, size - offset);
      const auto pieces = static_cast<std::int64_t>((chunk + kPieceBytes - 1) / kPieceBytes);
      pool.parallel_for(pieces, [&](std::int64_t piece, int) {
        const std::uint64_t begin = offset + static_cast<std::uint64_t>(piece) * kPieceBytes;
        filler.fill(slot + begin, std::min<std::uint64_t>(kPieceBytes, offset + chunk - begin),
                    begin / dtype_bytes(dtype));
      });
      advance(chunk);
    }
  }
  upload.finish();
  if (progress) progress(total, total);
  return weights;
}

}  // namespace triphase
