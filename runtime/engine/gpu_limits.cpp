#include "runtime/engine/gpu_limits.h"

#include <fmt/format.h>

#include "kernels/sizing/cuda_workspace.h"
#include "runtime/refuse.h"

namespace triphase {
namespace {

// Selection on a GPU takes whole groups of channels.
void require_selectable_heads(const ModelConfig& config, std::string_view option,
                              std::string_view value, std::string_view hint) {
  if (config.head_dim % kGpuSelectionHeadDim == 0) return;
  refuse_conflict(option,
                  fmt::format("{} on a GPU, with heads of {} channels", value, config.head_dim),
                  fmt::format("a multiple of {} channels", kGpuSelectionHeadDim), hint);
}

void require_scorable_heads(const ModelConfig& config, std::string_view option,
                            std::string_view value, std::string_view hint) {
  require_selectable_heads(config, option, value, hint);
  const std::int64_t group = config.heads / config.kv_heads;
  if (group <= kGpuMaxScoredGroup) return;
  refuse_conflict(option,
                  fmt::format("{} on a GPU, with {} query heads for each KV head", value, group),
                  fmt::format("at most {}", kGpuMaxScoredGroup), hint);
}

}  // namespace

void require_gpu_scores(const ComputeMachine& machine, const ModelConfig& config,
                        std::string_view option, std::string_view value) {
  if (machine.gpu) require_scorable_heads(config, option, value, "--device cpu");
}

void require_attention(const ComputeMachine& machine, const ModelConfig& config,
                       const AttentionOptions& attention) {
  if (machine.gpu && config.head_dim > kGpuMaxHeadDim) {
    refuse_conflict("--device", fmt::format("a GPU, with heads of {} channels", config.head_dim),
                    fmt::format("heads of up to {} channels", kGpuMaxHeadDim), "--device cpu");
  }
  if (!attention.sparse()) return;
  const std::string_view name = attention_name(attention.kind);
  if (machine.gpu) {
    constexpr std::string_view kHint = "--attention dense, or --device cpu";
    if (scores_keys(attention)) require_scorable_heads(config, "--attention", name, kHint);
    require_selectable_heads(config, "--attention", name, kHint);
  }
  if (config.attention.score_cap != 0.0 || config.logits.cap != 0.0) {
    refuse_conflict("--attention",
                    fmt::format("{} with soft caps of a {} model", name, config.model_type),
                    "dense", "--attention dense");
  }
  if (config.attention.sinks && scales_by_share(attention)) {
    refuse_conflict("--attention",
                    fmt::format("{} with attention sinks of a {} model", name, config.model_type),
                    "a method that does not scale by shares", "--attention swa, quest or dense");
  }
}

}  // namespace triphase
