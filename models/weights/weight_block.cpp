#include "models/weights/weight_block.h"

#include "base/error.h"
#include "models/weights/weight_parts.h"

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
    if (manifest[i].layer >= 0) ends[manifest[i].layer] = total;
  }
  layers.resize(static_cast<std::size_t>(config.layers));
  host_layers.resize(layers.size());
  block_ = DeviceBlock(*homes.device, bytes);
  if (host_bytes > 0) host_block_ = DeviceBlock(*homes.host, host_bytes);
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const WeightEntry& entry = manifest[i];
    slots_.push_back((on_host(entry) ? host_block_ : block_).data() + offsets[i]);
    place(entry, dtypes[i], slots_.back());
    if (!on_host(entry)) continue;
    HostLayer& host_layer = host_layers[entry.layer];
    if (host_layer.data == nullptr) {
      host_layer = {slots_.back(), ends[entry.layer] - offsets[i]};
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
  const auto set = [&](auto& owner, const auto& parts, auto value) {
    for (const auto& [slot, part] : parts) {
      if (slot == entry.slot) owner.*part = value;
    }
  };
  if (entry.layer < 0) {
    set(*this, kModelMatrices, matrix);
    set(*this, kModelVectors, vector);
  } else {
    LayerWeights& layer = layers[entry.layer];
    set(layer, kLayerMatrices, matrix);
    set(layer, kLayerVectors, vector);
  }
}

}  // namespace triphase
