#include "models/weights/weight_block.h"

#include <fmt/format.h>

#include "base/checked_math.h"
#include "base/error.h"

namespace triphase {

std::uint64_t entry_bytes(const WeightEntry& entry, DType dtype) {
  return static_cast<std::uint64_t>(entry.rows) * static_cast<std::uint64_t>(entry.cols) *
         (entry.vector ? sizeof(float) : dtype_bytes(dtype));
}

WeightBlock::WeightBlock(const ModelConfig& config, std::span<const WeightEntry> manifest,
                         std::span<const DType> dtypes, const WeightHomes& homes)
    : homes_(homes) {
  TRIPHASE_CHECK(manifest.size() == dtypes.size(), "one type per entry");
  TRIPHASE_CHECK(homes.streamed_layers == 0 || homes.host != nullptr,
                 "streamed layers need a host");
  // Bounds every sum below: no type is wider than F32.
  static_cast<void>(manifest_bytes(manifest, DType::kF32));
  const auto on_host = [&](const WeightEntry& entry) {
    return entry.layer >= 0 && homes.streamed(entry.layer, config.layers);
  };
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> ends(static_cast<std::size_t>(config.layers));
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    std::uint64_t& total = on_host(manifest[i]) ? host_bytes : bytes;
    offsets.push_back(total);
    total += aligned_bytes(entry_bytes(manifest[i], dtypes[i]));
    if (manifest[i].layer >= 0) ends[static_cast<std::size_t>(manifest[i].layer)] = total;
  }
  layers.resize(static_cast<std::size_t>(config.layers));
  host_layers.resize(layers.size());
  block_ = take(*homes.device, bytes);
  if (host_bytes > 0) host_block_ = take(*homes.host, host_bytes);
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const WeightEntry& entry = manifest[i];
    slots_.push_back((on_host(entry) ? host_block_ : block_).get() + offsets[i]);
    place(entry, dtypes[i], slots_.back());
    if (!on_host(entry)) continue;
    const auto layer = static_cast<std::size_t>(entry.layer);
    HostLayer& host_layer = host_layers[layer];
    if (host_layer.data == nullptr) {
      host_layer = {slots_.back(), ends[layer] - offsets[i]};
    }
    TRIPHASE_CHECK(
        slots_.back() >= host_layer.data && slots_.back() < host_layer.data + host_layer.bytes,
        "a layer's weights are one range");
  }
  if (config.embedding.tied) lm_head = embedding;
  if (!config.norms.shared) return;
  for (LayerWeights& layer : layers) {
    layer.mlp_norm = layer.attention_norm;
    layer.mlp_norm_bias = layer.attention_norm_bias;
  }
}

void WeightBlock::place(const WeightEntry& entry, DType dtype, const std::byte* data) {
  const ConstMatrix matrix{data, dtype, entry.rows, entry.cols, entry.cols};
  const auto* vector = reinterpret_cast<const float*>(data);
  LayerWeights unused;
  LayerWeights& layer = entry.layer < 0 ? unused : layers[static_cast<std::size_t>(entry.layer)];
  switch (entry.slot) {
    case WeightSlot::kEmbedding:
      embedding = matrix;
      return;
    case WeightSlot::kPositions:
      positions = matrix;
      return;
    case WeightSlot::kProjectIn:
      embed_project_in = matrix;
      return;
    case WeightSlot::kProjectOut:
      embed_project_out = matrix;
      return;
    case WeightSlot::kFinalNorm:
      final_norm = vector;
      return;
    case WeightSlot::kFinalNormBias:
      final_norm_bias = vector;
      return;
    case WeightSlot::kLmHead:
      lm_head = matrix;
      return;
    case WeightSlot::kAttentionNorm:
      layer.attention_norm = vector;
      return;
    case WeightSlot::kAttentionNormBias:
      layer.attention_norm_bias = vector;
      return;
    case WeightSlot::kQkv:
      layer.qkv = matrix;
      return;
    case WeightSlot::kQkvBias:
      layer.qkv_bias = vector;
      return;
    case WeightSlot::kQueryNorm:
      layer.query_norm = vector;
      return;
    case WeightSlot::kKeyNorm:
      layer.key_norm = vector;
      return;
    case WeightSlot::kSinks:
      layer.sinks = vector;
      return;
    case WeightSlot::kAttentionOut:
      layer.attention_out = matrix;
      return;
    case WeightSlot::kAttentionOutBias:
      layer.attention_out_bias = vector;
      return;
    case WeightSlot::kAttentionOutputNorm:
      layer.attention_output_norm = vector;
      return;
    case WeightSlot::kMlpNorm:
      layer.mlp_norm = vector;
      return;
    case WeightSlot::kMlpNormBias:
      layer.mlp_norm_bias = vector;
      return;
    case WeightSlot::kRouter:
      layer.router = matrix;
      return;
    case WeightSlot::kRouterBias:
      layer.router_bias = vector;
      return;
    case WeightSlot::kUp:
      layer.up = matrix;
      return;
    case WeightSlot::kUpBias:
      layer.up_bias = vector;
      return;
    case WeightSlot::kDown:
      layer.down = matrix;
      return;
    case WeightSlot::kDownBias:
      layer.down_bias = vector;
      return;
    case WeightSlot::kMlpOutputNorm:
      layer.mlp_output_norm = vector;
      return;
  }
}

}  // namespace triphase
