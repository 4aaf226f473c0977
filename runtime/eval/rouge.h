#pragma once

// ROUGE-L (Lin, 2004, section 3): the longest common subsequence of two texts' words. Words are
// runs of ASCII letters and digits, lower-cased, without stemming. Pure.

#include <string_view>

namespace triphase::eval {

struct RougeL {
  double recall = 0.0;     // of the reference's words
  double precision = 0.0;  // of the candidate's words
  double f = 0.0;          // harmonic mean (beta = 1); 0 when nothing is common
};

[[nodiscard]] RougeL rouge_l(std::string_view reference, std::string_view candidate);

}  // namespace triphase::eval
