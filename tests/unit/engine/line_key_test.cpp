#include "runtime/engine/line_key.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

TEST(LineKey, OwnSeedIgnoresTheIndexAndTheJob) {
  SamplingParams own;
  own.seed = 5;
  EXPECT_EQ(line_key(own, 1, 2), line_key(own, 3, 4));
  EXPECT_NE(line_key({}, 1, 2), line_key({}, 1, 3));
  EXPECT_NE(line_key({}, 1, 2), line_key({}, 2, 2));
  EXPECT_NE(line_key(own, 0, 0), line_key({}, 5, 0));
}

}  // namespace
}  // namespace triphase
