// random: every step draws its tokens anew, all sets of the budget's size being as likely; the
// current token always.

#include "models/attention/methods.h"

namespace triphase {
namespace {

// 32 bits that depend on context length and token alone, so that a step draws the same tokens in
// any batch, under any split and after a resume (SplitMix64, Steele et al. 2014).
std::uint64_t drawn(std::int64_t context, std::int64_t token) {
  std::uint64_t bits =
      (static_cast<std::uint64_t>(context) << 32U) + static_cast<std::uint64_t>(token);
  bits += 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
  return (bits ^ (bits >> 31U)) >> 32U;
}

// Selection sampling (Knuth, volume 2, algorithm 3.4.2 S): a token is taken with the probability
// of tokens still wanted over tokens still to come.
void choose_at_random(std::int64_t context, std::int64_t budget,
                      std::vector<std::int32_t>& tokens) {
  const std::int64_t current = context - 1;
  auto wanted = static_cast<std::uint64_t>(budget - 1);
  for (std::int64_t token = 0; wanted > 0; ++token) {
    const auto to_come = static_cast<std::uint64_t>(current - token);
    if ((drawn(context, token) * to_come) >> 32U >= wanted) continue;
    tokens.push_back(static_cast<std::int32_t>(token));
    --wanted;
  }
  tokens.push_back(static_cast<std::int32_t>(current));
}

// A control: the host draws, on every device.
class Random final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  void choose(State&, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = is_dense(budget, context);
    if (choice.dense) return;
    choose_at_random(context, budget, choice.tokens);
    choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
  }
};

}  // namespace

std::unique_ptr<AttentionMethod> make_random(const AttentionOptions& options,
                                             const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Random>(options, shape);
}

}  // namespace triphase
