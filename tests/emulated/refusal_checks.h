#pragma once

// Calls that must be refused before a launch, each with an error that names the operation, what is
// wrong and one of its sizes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace triphase::cuda {

struct Refusal {
  const char* operation;
  const char* what;   // the condition
  const char* shape;  // one of its sizes
  std::function<void()> call;
};

inline void expect_refused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(std::string(refusal.operation) + ": " + refusal.what);
    try {
      refusal.call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-INT-CHECK");
      EXPECT_THAT(error.message(), testing::AllOf(testing::HasSubstr(refusal.operation),
                                                  testing::HasSubstr(refusal.what),
                                                  testing::HasSubstr(refusal.shape)));
    }
  }
}

}  // namespace triphase::cuda
