#pragma once

// The parts of ModelWeights and of LayerWeights by their slots of the manifest.

#include <array>

#include "models/config/tensor_manifest.h"
#include "models/weights/weights.h"

namespace triphase {

template <class Owner, class Part>
struct WeightPart {
  WeightSlot slot;
  Part Owner::*part;
};

inline constexpr std::array<WeightPart<ModelWeights, ConstMatrix>, 5> kModelMatrices{{
    {WeightSlot::kEmbedding, &ModelWeights::embedding},
    {WeightSlot::kPositions, &ModelWeights::positions},
    {WeightSlot::kProjectIn, &ModelWeights::embed_project_in},
    {WeightSlot::kProjectOut, &ModelWeights::embed_project_out},
    {WeightSlot::kLmHead, &ModelWeights::lm_head},
}};

inline constexpr std::array<WeightPart<ModelWeights, const float*>, 2> kModelVectors{{
    {WeightSlot::kFinalNorm, &ModelWeights::final_norm},
    {WeightSlot::kFinalNormBias, &ModelWeights::final_norm_bias},
}};

inline constexpr std::array<WeightPart<LayerWeights, ConstMatrix>, 5> kLayerMatrices{{
    {WeightSlot::kQkv, &LayerWeights::qkv},
    {WeightSlot::kAttentionOut, &LayerWeights::attention_out},
    {WeightSlot::kRouter, &LayerWeights::router},
    {WeightSlot::kUp, &LayerWeights::up},
    {WeightSlot::kDown, &LayerWeights::down},
}};

inline constexpr std::array<WeightPart<LayerWeights, const float*>, 14> kLayerVectors{{
    {WeightSlot::kAttentionNorm, &LayerWeights::attention_norm},
    {WeightSlot::kAttentionNormBias, &LayerWeights::attention_norm_bias},
    {WeightSlot::kQkvBias, &LayerWeights::qkv_bias},
    {WeightSlot::kQueryNorm, &LayerWeights::query_norm},
    {WeightSlot::kKeyNorm, &LayerWeights::key_norm},
    {WeightSlot::kSinks, &LayerWeights::sinks},
    {WeightSlot::kAttentionOutBias, &LayerWeights::attention_out_bias},
    {WeightSlot::kAttentionOutputNorm, &LayerWeights::attention_output_norm},
    {WeightSlot::kMlpNorm, &LayerWeights::mlp_norm},
    {WeightSlot::kMlpNormBias, &LayerWeights::mlp_norm_bias},
    {WeightSlot::kRouterBias, &LayerWeights::router_bias},
    {WeightSlot::kUpBias, &LayerWeights::up_bias},
    {WeightSlot::kDownBias, &LayerWeights::down_bias},
    {WeightSlot::kMlpOutputNorm, &LayerWeights::mlp_output_norm},
}};

static_assert(sizeof(LayerWeights) == kLayerMatrices.size() * sizeof(ConstMatrix) +
                                          kLayerVectors.size() * sizeof(const float*),
              "every part of a layer has a slot");

}  // namespace triphase
