// Random weights for runs without a checkpoint. Element i of slot s is a pure function of
// (seed, s, i), so that the result does not depend on the number of threads or the device.

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "models/weights/weight_block.h"
#include "models/weights/weights.h"

namespace triphase {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

// One step of the splitmix64 generator at counter x: a bijection with good avalanche.
std::uint64_t mix(std::uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Uniform values of variance 1/in: half-width sqrt(3 / in). 16-bit types draw from a table of
// 65,536 values, because converting each element would cost more than everything else.
class MatrixFiller {
 public:
  MatrixFiller(std::uint64_t key, std::int64_t in_features, DType dtype)
      : key_(key),
        half_width_(static_cast<float>(std::sqrt(3.0 / static_cast<double>(in_features)))),
        dtype_(dtype) {
    if (dtype == DType::kF32) return;
    table_.resize(65536);
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const float value = half_width_ * ((static_cast<float>(i) + 0.5F) / 32768.0F - 1.0F);
      table_[i] = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    }
  }

  // Elements [first, first + bytes / size) of the matrix; first is a multiple of 4.
  void fill(std::byte* out, std::size_t bytes, std::uint64_t first) const {
    if (dtype_ == DType::kF32) {
      fill_each<2>(reinterpret_cast<float*>(out), bytes / sizeof(float), first,
                   [this](std::uint64_t word, int part) {
                     const auto bits = static_cast<std::int32_t>(word >> (32 * part));
                     return half_width_ * (static_cast<float>(bits) * 0x1p-31F);
                   });
    } else {
      fill_each<4>(
          reinterpret_cast<std::uint16_t*>(out), bytes / sizeof(std::uint16_t), first,
          [this](std::uint64_t word, int part) { return table_[(word >> (16 * part)) & 0xFFFFU]; });
    }
  }

 private:
  template <int kPerWord, class T, class Value>
  void fill_each(T* out, std::size_t count, std::uint64_t first, const Value& value) const {
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
  TRIPHASE_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16,
                 "random weights are F32, F16 or BF16");
  const std::vector<WeightEntry> manifest = weight_manifest(config);
  const std::vector<DType> dtypes(manifest.size(), dtype);
  auto weights = std::make_unique<WeightBlock>(config, manifest, dtypes, homes);
  Device& device = *homes.device;
  const std::unique_ptr<Stream> stream = device.make_stream();
  const float norm_weight = config.norms.kind == Norm::kRmsNormPlusOne ? 0.0F : 1.0F;

  ThreadPool pool(fill_threads());
  std::uint64_t largest = 0;
  for (const WeightEntry& entry : manifest) largest = std::max(largest, entry_bytes(entry, dtype));
  std::vector<std::byte> staging(std::min<std::uint64_t>(kStagingBytes, largest));
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const WeightEntry& entry = manifest[i];
    const std::uint64_t size = entry_bytes(entry, dtype);
    if (entry.vector) {
      fill_vector(device, *stream, weights->slot(i), entry.rows,
                  entry.is_norm_weight() ? norm_weight : 0.0F);
      done += size;
      continue;
    }
    const MatrixFiller filler(mix(mix(seed) + i), entry.cols, dtype);
    for (std::uint64_t offset = 0; offset < size; offset += kStagingBytes) {
      const std::size_t chunk = std::min<std::uint64_t>(kStagingBytes, size - offset);
      const auto pieces = static_cast<std::int64_t>((chunk + kPieceBytes - 1) / kPieceBytes);
      pool.parallel_for(pieces, [&](std::int64_t piece, int) {
        const std::size_t begin = static_cast<std::size_t>(piece) * kPieceBytes;
        filler.fill(staging.data() + begin, std::min(kPieceBytes, chunk - begin),
                    (offset + begin) / dtype_bytes(dtype));
      });
      device.copy(weights->slot(i) + offset, staging.data(), chunk, *stream);
      stream->synchronize();
      done += chunk;
      if (progress) progress(done, weights->bytes + weights->host_bytes);
    }
  }
  if (progress) {
    progress(weights->bytes + weights->host_bytes, weights->bytes + weights->host_bytes);
  }
  return weights;
}

}  // namespace triphase
