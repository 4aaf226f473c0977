#include "models/attention/attention_method.h"

#include "base/error.h"
#include "kernels/sizing/ops_scratch.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {

std::int64_t AttentionMethod::prefill_rows(std::int64_t) const { return 0; }
std::unique_ptr<AttentionMethod::State> AttentionMethod::begin(std::int64_t, std::int64_t) const {
  return std::make_unique<State>();
}
void AttentionMethod::appended(const Sequences&, const LayerCall&, ConstMatrix) {}
void AttentionMethod::prefilled(const Sequences&, const LayerCall&, ConstMatrix) {}

Selection AttentionMethod::choose(const Sequences&, const LayerCall&, ConstMatrix) {
  TRIPHASE_CHECK(false, "a method that does not choose by queries");
  return {};
}
Selection AttentionMethod::choose_ahead(const Sequences&, const LayerCall&) {
  TRIPHASE_CHECK(false, "a method that does not choose ahead");
  return {};
}
void AttentionMethod::attended(const Sequences&, const LayerCall&, const Selection&) {}

std::uint64_t AttentionMethod::score_bytes(std::int64_t sequences, std::int64_t tokens) const {
  return DeviceFloats::most_bytes(
      attended_floats(sequences, shape_.heads, roomy_list_capacity(tokens)));
}

Selection AttentionMethod::choose_with_prompts(const Sequences&, std::span<const AttentionSegment>,
                                               const LayerCall&, ConstMatrix) {
  TRIPHASE_CHECK(false, "a method that does not choose for prompts");
  return {};
}

std::unique_ptr<AttentionMethod> make_attention_method(const AttentionOptions& options,
                                                       const MethodShape& shape,
                                                       const ContextClusters* clusters) {
#define TRIPHASE_ATTENTION_METHOD(kind, file, name) make_##file,
  static constexpr decltype(&make_attention_method) kMakers[] = {
#include "scheduler/attention/attention_methods.inc"
  };
#undef TRIPHASE_ATTENTION_METHOD
  return kMakers[static_cast<std::size_t>(options.kind)](options, shape, clusters);
}

}  // namespace triphase
