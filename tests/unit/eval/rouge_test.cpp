// ROUGE-L by hand: common subsequence over words, and its F.

#include "runtime/eval/rouge.h"

#include <gtest/gtest.h>

namespace triphase::eval {
namespace {

TEST(RougeL, CountsTheLongestCommonSubsequence) {
  struct Case {
    const char* reference;
    const char* candidate;
    double recall;
    double precision;
  };
  for (const Case& one : {
           // Lin (2004), section 3.1: both candidates share 3 and 2 words of 4.
           Case{"police killed the gunman", "police kill the gunman", 3.0 / 4, 3.0 / 4},
           Case{"police killed the gunman", "the gunman kill police", 2.0 / 4, 2.0 / 4},
           Case{"a b c d e f", "a c e", 3.0 / 6, 1.0},
           Case{"a b", "b a", 1.0 / 2, 1.0 / 2},
           Case{"The cat, sat!", "the CAT sat", 1.0, 1.0},
           Case{"x x x", "x", 1.0 / 3, 1.0},
           Case{"one two", "three", 0.0, 0.0},
           Case{"", "a", 0.0, 0.0},
           Case{"a", "...", 0.0, 0.0},
       }) {
    const RougeL score = rouge_l(one.reference, one.candidate);
    EXPECT_DOUBLE_EQ(score.recall, one.recall) << one.candidate;
    EXPECT_DOUBLE_EQ(score.precision, one.precision) << one.candidate;
    const double sum = one.recall + one.precision;
    EXPECT_DOUBLE_EQ(score.f, sum == 0.0 ? 0.0 : 2.0 * one.recall * one.precision / sum);
  }
}

}  // namespace
}  // namespace triphase::eval
