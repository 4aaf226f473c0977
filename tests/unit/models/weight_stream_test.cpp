// Weights come to the decoder as they were loaded, from wherever they are at home: what is on the
// host is read once it has crossed the link, and never again.

#include "models/weight_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "memory/host_device.h"
#include "memory/transfer/host_transfer_engine.h"
#include "tests/unit/models/config_text.h"

namespace triphase {
namespace {

constexpr std::int64_t kLayers = 4;

struct Rig {
  explicit Rig(std::int64_t streamed)
      : config(
            parse(with(with(kLlamaConfig, "num_hidden_layers", "4"), "intermediate_size", "100"))),
        weights(random_weights(config, DType::kF16, 3, {device, device, streamed}, {})),
        plain(random_weights(config, DType::kF16, 3, device, {})) {}

  HostDevice device;
  ModelConfig config;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<ModelWeights> plain;
  MemoryPool pool{device, MemoryTier::kDevice, std::uint64_t{1} << 30};
  HostTransferEngine transfers{std::nullopt};
};

void expect_matrix(const ConstMatrix& actual, const ConstMatrix& plain) {
  ASSERT_EQ(actual.dtype, DType::kF16);
  ASSERT_EQ(actual.rows, plain.rows);
  ASSERT_EQ(actual.cols, plain.cols);
  EXPECT_EQ(
      std::memcmp(actual.data, plain.data, static_cast<std::size_t>(plain.rows * plain.cols) * 2),
      0);
}

TEST(WeightStreams, HandOutWhatWasLoadedAndReadTheHostBeforeTheyDo) {
  for (const std::int64_t streamed : {0, 1, 3, 4}) {
    for (const bool prefetch : {true, false}) {
      SCOPED_TRACE(testing::Message() << streamed << " streamed, prefetch " << prefetch);
      Rig rig(streamed);
      WeightStream stream(*rig.weights, &rig.transfers, rig.pool);
      stream.set_prefetch(prefetch);
      EXPECT_EQ(stream.streams(), streamed > 0);
      for (std::int64_t step = 0; step < 3; ++step) {
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          const auto index = static_cast<std::size_t>(layer);
          const LayerWeights& w = stream.acquire(layer);
          // What has crossed is not looked at on the host any more.
          const ModelWeights::HostLayer& home = rig.weights->host_layers[index];
          std::vector<std::byte> kept(home.bytes);
          if (home.data != nullptr) {
            std::memcpy(kept.data(), home.data, home.bytes);
            std::memset(const_cast<std::byte*>(home.data), 0xFF, home.bytes);
          }
          const LayerWeights& plain = rig.plain->layers[index];
          expect_matrix(w.qkv, plain.qkv);
          expect_matrix(w.attention_out, plain.attention_out);
          expect_matrix(w.up, plain.up);
          expect_matrix(w.down, plain.down);
          EXPECT_EQ(w.mlp_norm[5], plain.mlp_norm[5]);
          stream.done(layer);
          if (home.data != nullptr) {
            std::memcpy(const_cast<std::byte*>(home.data), kept.data(), home.bytes);
          }
          rig.transfers.drain();
        }
      }
      EXPECT_EQ(rig.pool.use(MemoryTag::kWeights).peak,
                streamed > 0 ? 2 * std::ranges::max(layer_bytes(rig.config, DType::kF16)) : 0);
    }
  }
}

TEST(WeightStreams, SinksAndBiasesOfExpertsComeToo) {
  HostDevice device;
  const ModelConfig config = parse(kGptOssConfig);
  const auto weights = random_weights(config, DType::kF16, 3, {device, device, 2}, {});
  for (const float* values : {weights->layers[1].sinks, weights->layers[1].router_bias}) {
    const_cast<float*>(values)[2] = 1.5F;
  }
  MemoryPool pool{device, MemoryTier::kDevice, std::uint64_t{1} << 30};
  HostTransferEngine transfers{std::nullopt};
  WeightStream stream(*weights, &transfers, pool);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const LayerWeights& w = stream.acquire(layer);
    ASSERT_TRUE(w.sinks != nullptr && w.router_bias != nullptr);
    EXPECT_NE(w.sinks, weights->layers[static_cast<std::size_t>(layer)].sinks);
    EXPECT_EQ(w.sinks[2], layer == 1 ? 1.5F : 0.0F);
    EXPECT_EQ(w.router_bias[2], layer == 1 ? 1.5F : 0.0F);
    stream.done(layer);
  }
}

}  // namespace
}  // namespace triphase
