// Weights on their way to a GPU: files through pinned buffers in turn, random ones made there. What
// the host's copy of the same code loads is what must be there.

#include "models/weights/weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/random_fill.h"
#include "memory/host_device.h"
#include "models/config/tensor_manifest.h"
#include "models/files/weight_files.h"
#include "tests/emulated/emulated_device.h"
#include "tests/unit/models/checkpoint_builder.h"
#include "tests/unit/models/config_text.h"

namespace triphase {
namespace {

using emulated::EmulatedDevice;

constexpr std::uint64_t kSchedules = 6;

// A checkpoint in BF16, whose vectors are converted to F32.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& config_text, const std::string& prefix)
      : config_(parse(config_text)) {
    std::vector<BuiltTensor> tensors;
    std::uint32_t random = 1;
    for (const WeightEntry& entry : weight_manifest(config_)) {
      for (const TensorPart& part : entry.parts) {
        std::vector<std::uint16_t> values(static_cast<std::size_t>(part.rows * entry.cols));
        for (std::uint16_t& value : values) {
          random = random * 1664525 + 1013904223;
          value = static_cast<std::uint16_t>(random >> 16 & 0x3FFFU);  // finite
        }
        std::vector<std::size_t> shape{static_cast<std::size_t>(part.rows)};
        if (!entry.vector) shape.push_back(static_cast<std::size_t>(entry.cols));
        tensors.push_back(
            tensor16((part.prefixed ? prefix : "") + part.name, "BF16", shape, values));
      }
    }
    directory_.write("model.safetensors", safetensors(tensors));
  }

  [[nodiscard]] std::unique_ptr<ModelWeights> load(const WeightHomes& homes) const {
    Notes notes;
    const WeightFiles files = WeightFiles::open(DirectoryHandle(directory_.path()), false, notes);
    return load_weights(files, config_, homes, {}, notes, {});
  }

 private:
  ModelConfig config_;
  TemporaryDirectory directory_;
};

// The bytes of every matrix and of a vector a layer, wherever they lie.
std::vector<std::vector<std::byte>> contents(const ModelWeights& weights, Device& device) {
  std::vector<std::vector<std::byte>> all;
  const auto stream = device.make_stream();
  const auto add = [&](const void* data, std::size_t bytes) {
    all.emplace_back(bytes);
    device.copy(all.back().data(), data, bytes, *stream);
    stream->synchronize();
  };
  const auto add_matrix = [&](const ConstMatrix& matrix) {
    add(matrix.data,
        static_cast<std::size_t>(matrix.rows * matrix.cols) * dtype_bytes(matrix.dtype));
  };
  add_matrix(weights.embedding);
  add_matrix(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const ConstMatrix& matrix : {layer.qkv, layer.attention_out, layer.up, layer.down}) {
      add_matrix(matrix);
    }
    add(layer.attention_norm, static_cast<std::size_t>(layer.qkv.cols) * sizeof(float));
  }
  return all;
}

// The checkpoint fills both buffers and the first once more.
TEST(EmulatedWeights, FilesPassThroughTwoPinnedBuffers) {
  const Checkpoint checkpoint(with(kLlamaConfig, "vocab_size", "80000"), "model.");
  HostDevice cpu;
  const auto expected = contents(*checkpoint.load(cpu), cpu);
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    EmulatedDevice device({.schedule = schedule});
    const auto weights = checkpoint.load(device);
    EXPECT_EQ(device.counts().allocations, 3) << "the weights' memory, and two buffers";
    EXPECT_EQ(device.counts().pageable, 0);
    EXPECT_LE(device.counts().waits, 3) << "two buffers that are filled again, and the end";
    EXPECT_EQ(contents(*weights, device), expected) << "schedule " << schedule;
  }
}

// GPT-NeoX stores its rows in another order.
TEST(EmulatedWeights, RowsInAnotherOrderAreNotWaitedForOneByOne) {
  const Checkpoint checkpoint(kNeoxConfig, "gpt_neox.");
  HostDevice cpu;
  const auto expected = contents(*checkpoint.load(cpu), cpu);
  EmulatedDevice device({.schedule = 1});
  const auto weights = checkpoint.load(device);
  EXPECT_EQ(device.counts().pageable, 0);
  EXPECT_EQ(device.counts().waits, 1);
  EXPECT_EQ(contents(*weights, device), expected);
}

// The host's CPU reads weights where they stay: none crosses the GPU's link.
TEST(EmulatedWeights, StreamedLayersAreWrittenByTheHost) {
  const Checkpoint checkpoint(kLlamaConfig, "model.");
  HostDevice cpu;
  const auto expected = contents(*checkpoint.load(cpu), cpu);
  EmulatedDevice device({});
  emulated::EmulatedHost host(device, 1);
  const auto weights = checkpoint.load({device, host, 2});
  EXPECT_EQ(device.counts().uploads, 3) << "embeddings, head and last norm";
  EXPECT_EQ(device.counts().downloads, 0);
  EXPECT_EQ(contents(*weights, device), expected);
}

WeightHomes with_fill(Device& device, Device& host, std::int64_t streamed_layers) {
  return {device, host, streamed_layers,
          [](std::uint64_t key, float half_width, Matrix y, Stream& stream) {
            cuda::random_fill(key, half_width, y, stream.launches());
          }};
}

TEST(EmulatedWeights, RandomOnesAreMadeOnTheDeviceAndAreTheCpus) {
  const ModelConfig config = parse(kLlamaConfig);
  HostDevice cpu;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto expected = contents(*random_weights(config, dtype, 5, cpu, {}), cpu);
    for (const std::int64_t streamed : {0, 1}) {
      EmulatedDevice device({});
      emulated::EmulatedHost host(device, 1);
      const auto weights = random_weights(config, dtype, 5, with_fill(device, host, streamed), {});
      EXPECT_EQ(device.counts().launches, 2 + 4 * (2 - streamed)) << "a matrix each";
      EXPECT_EQ(device.counts().uploads, 1 + 2 * (2 - streamed)) << "norms";
      EXPECT_EQ(device.counts().pageable, 0);
      EXPECT_EQ(device.counts().waits, 1);
      EXPECT_EQ(contents(*weights, device), expected) << dtype_name(dtype);
    }
  }
}

}  // namespace
}  // namespace triphase
