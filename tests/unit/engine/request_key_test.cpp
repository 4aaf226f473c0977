#include "runtime/engine/request_key.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

TEST(RequestKey, OwnSeedIgnoresTheIndexAndTheJob) {
  SamplingParams own;
  own.seed = 5;
  EXPECT_EQ(request_key(own, 1, 2), request_key(own, 3, 4));
  EXPECT_NE(request_key({}, 1, 2), request_key({}, 1, 3));
  EXPECT_NE(request_key({}, 1, 2), request_key({}, 2, 2));
  EXPECT_NE(request_key(own, 0, 0), request_key({}, 5, 0));
  EXPECT_NE(request_key({}, 1, 2, 1), request_key({}, 1, 2));
  EXPECT_NE(request_key({}, 1, 2, 1), request_key({}, 1, 3));
}

}  // namespace
}  // namespace triphase
