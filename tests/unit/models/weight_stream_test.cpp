// Weights come to the decoder as they were loaded, from wherever they are at home: what is on the
// host is read once it has crossed the link, and never again.

#include "models/weight_stream.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/group_quant.h"
#include "memory/host_device.h"
#include "memory/transfer/host_transfer_engine.h"
#include "tests/unit/models/config_text.h"

namespace triphase {
namespace {

constexpr std::int64_t kLayers = 4;

struct Rig {
  Rig(std::int64_t streamed, bool groups)
      : config(
            parse(with(with(kLlamaConfig, "num_hidden_layers", "4"), "intermediate_size", "100"))),
        weights(random_weights(config, DType::kF16, 3, {device, device, streamed, groups}, {})),
        plain(random_weights(config, DType::kF16, 3, device, {})),
        ops(make_cpu_ops(threads)),
        stream(device.make_stream()) {}

  HostDevice device;
  ModelConfig config;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<ModelWeights> plain;
  ThreadPool threads{2};
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;
  MemoryPool pool{device, MemoryTier::kDevice, std::uint64_t{1} << 30};
  HostTransferEngine transfers{std::nullopt};
};

// The F16 values of a matrix, through groups and back where it is packed.
std::vector<std::uint16_t> expected(const ConstMatrix& plain, bool groups) {
  const auto* bits = static_cast<const std::uint16_t*>(plain.data);
  std::vector<std::uint16_t> values(bits, bits + plain.rows * plain.cols);
  if (!groups) return values;
  const GroupMatrix shape{nullptr, 1, plain.cols};
  for (std::int64_t row = 0; row < plain.rows; ++row) {
    const auto of_row = std::span(values).subspan(static_cast<std::size_t>(row * plain.cols),
                                                  static_cast<std::size_t>(plain.cols));
    std::vector<float> wide;
    for (const std::uint16_t one : of_row) wide.push_back(f16_to_f32(one));
    std::vector<GroupRange> ranges(static_cast<std::size_t>(shape.groups()));
    std::vector<std::uint8_t> codes(shape.code_row_bytes());
    pack_groups(wide, kGroupValues, ranges.data(), codes.data());
    widen_groups(ranges.data(), codes.data(), kGroupValues, of_row);
  }
  return values;
}

void expect_matrix(const ConstMatrix& actual, const ConstMatrix& plain, bool groups) {
  ASSERT_EQ(actual.dtype, DType::kF16);
  ASSERT_EQ(actual.rows, plain.rows);
  ASSERT_EQ(actual.cols, plain.cols);
  const std::vector<std::uint16_t> values = expected(plain, groups);
  EXPECT_EQ(std::memcmp(actual.data, values.data(), values.size() * 2), 0);
}

class WeightStreams : public testing::TestWithParam<bool> {};  // whether in groups

TEST_P(WeightStreams, HandOutWhatWasLoadedAndReadTheHostBeforeTheyDo) {
  const bool groups = GetParam();
  for (const std::int64_t streamed : {0, 1, 3, 4}) {
    for (const bool prefetch : {true, false}) {
      SCOPED_TRACE(testing::Message() << streamed << " streamed, prefetch " << prefetch);
      Rig rig(streamed, groups);
      WeightStream stream(*rig.weights, &rig.transfers, rig.pool);
      stream.set_prefetch(prefetch);
      EXPECT_EQ(stream.streams(), streamed > 0);
      EXPECT_EQ(stream.widens(), groups);
      for (std::int64_t step = 0; step < 3; ++step) {
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          stream.acquire(layer);
          const auto index = static_cast<std::size_t>(layer);
          // What has crossed is not looked at on the host any more.
          const ModelWeights::HostLayer& home = rig.weights->host_layers[index];
          std::vector<std::byte> kept(home.bytes);
          if (home.data != nullptr) {
            std::memcpy(kept.data(), home.data, home.bytes);
            std::memset(const_cast<std::byte*>(home.data), 0xFF, home.bytes);
          }
          const LayerWeights& w = stream.widened(layer, *rig.ops, *rig.stream);
          const LayerWeights& plain = rig.plain->layers[index];
          expect_matrix(w.qkv, plain.qkv, groups);
          expect_matrix(w.attention_out, plain.attention_out, groups);
          expect_matrix(w.up, plain.up, groups);
          expect_matrix(w.down, plain.down, groups);
          EXPECT_EQ(w.mlp_norm[5], plain.mlp_norm[5]);
          stream.done(layer);
          if (home.data != nullptr) {
            std::memcpy(const_cast<std::byte*>(home.data), kept.data(), home.bytes);
          }
          rig.transfers.drain();
        }
      }
      const WeightFormat format(DType::kF16, groups);
      const std::uint64_t wide = widened_layer_bytes(weight_manifest(rig.config), format);
      EXPECT_EQ(stream.widened_bytes(), 3 * kLayers * wide);
      EXPECT_EQ(rig.pool.use(MemoryTag::kWeights).peak,
                wide + (streamed > 0 ? 2 * largest_layer_bytes(rig.config, format) : 0));
    }
  }
}

TEST_P(WeightStreams, AreAskedInOrder) {
  Rig rig(4, GetParam());
  WeightStream stream(*rig.weights, &rig.transfers, rig.pool);
  EXPECT_THROW((void)stream.widened(0, *rig.ops, *rig.stream), Error) << "not acquired";
}

INSTANTIATE_TEST_SUITE_P(Formats, WeightStreams, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "groups" : "plain");
});

}  // namespace
}  // namespace triphase
