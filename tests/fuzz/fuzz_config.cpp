// config.json, and behind a NUL byte generation_config.json.

#include <optional>

#include "models/config/config_limits.h"
#include "models/config/tensor_manifest.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {
namespace {

ModelConfig parse(std::string_view text) {
  const std::size_t nul = text.find('\0');
  const Json config = parse_json_file(text.substr(0, nul), "config.json", ErrorRole::kModel,
                                      "E-CFG-JSON", {.max_values = 100'000});
  std::optional<Json> generation;
  if (nul != std::string_view::npos) {
    generation = parse_json_file(text.substr(nul + 1), "generation_config.json", ErrorRole::kModel,
                                 "E-CFG-JSON", {.max_values = 100'000});
  }
  Notes notes;
  return parse_model_config(config, generation ? &*generation : nullptr, "config.json", notes);
}

void check(const ModelConfig& parsed) {
  require(parsed.layers >= 1 && parsed.layers <= kMaxLayers);
  require(parsed.hidden_size >= 1 && parsed.hidden_size <= kMaxHidden);
  require(parsed.vocab_size >= 1 && parsed.vocab_size <= kMaxVocab);
  require(parsed.max_positions >= 1 && parsed.max_positions <= kMaxPositions);
  require(parsed.kv_heads >= 1 && parsed.heads % parsed.kv_heads == 0);
  require(parsed.head_dim >= 1 && parsed.q_width() > 0);
  require(parsed.norms.eps > 0.0);
  if (parsed.rope) {
    require(parsed.rope->rotary_dim >= 2 && parsed.rope->rotary_dim <= parsed.head_dim);
    require(parsed.rope->rotary_dim % 2 == 0 && parsed.rope->factor >= 1.0);
  }
  for (const std::int32_t id : parsed.eos_ids) require(id >= 0 && id < parsed.vocab_size);
  require(parsed.sliding_window.empty() ||
          parsed.sliding_window.size() == static_cast<std::size_t>(parsed.layers));
  if (parsed.layers <= 8) {
    require(manifest_bytes(weight_manifest(parsed), DType::kF32) > 0);
  }
}

}  // namespace
}  // namespace triphase

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = triphase::accepted(
      triphase::ErrorRole::kModel, [&] { return triphase::parse(triphase::as_text(data, size)); });
  if (config) triphase::check(*config);
  return 0;
}
