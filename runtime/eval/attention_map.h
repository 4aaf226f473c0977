#pragma once

// Which tokens a sparse attention method attends, step by step, for one sequence, layer and KV
// head: recorded while the model decodes, counted, and drawn as SVG.

#include <cstdint>
#include <string>
#include <vector>

#include "models/attention_runner.h"

namespace triphase::eval {

struct AttentionMapStep {
  std::int64_t context = 0;          // tokens of the context, the current one included
  bool dense = false;                // attended the whole context
  std::vector<std::int32_t> tokens;  // ascending; empty where dense
};

// Records what is chosen in one layer for one KV head (the common choice where heads share it).
class AttentionMapRecorder final : public AttentionObserver {
 public:
  // `list`: of a choice, by KV or query head; where all heads have one it does not matter.
  AttentionMapRecorder(std::int64_t layer, std::int64_t list) : layer_(layer), list_(list) {}

  void decoded(SequenceId sequence, const LayerCall& call, ConstMatrix q, std::int64_t row,
               const TokenChoice& choice) override;

  [[nodiscard]] const std::vector<AttentionMapStep>& steps() const { return steps_; }

 private:
  std::int64_t layer_;
  std::int64_t list_;
  std::vector<AttentionMapStep> steps_;
};

// How the choice changes from step to step.
struct AttentionMapCounts {
  std::int64_t attended = 0;  // tokens attended, over all steps
  std::int64_t context = 0;   // tokens there were, over all steps
  std::int64_t left = 0;      // times that a token was chosen in one step and not in the next
  std::int64_t returned = 0;  // times that a token was chosen which had left before
};
[[nodiscard]] AttentionMapCounts count_changes(const std::vector<AttentionMapStep>& steps);

struct AttentionMapTitle {
  std::string title;
  std::string subtitle;
};

// One row for each step from top to bottom, tokens from left to right; the prompt's end is marked.
// No script, light and dark, foreign text escaped.
[[nodiscard]] std::string attention_map_svg(const AttentionMapTitle& title,
                                            std::int64_t prompt_tokens,
                                            const std::vector<AttentionMapStep>& steps);

}  // namespace triphase::eval
