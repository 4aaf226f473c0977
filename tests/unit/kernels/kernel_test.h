#pragma once

// What the kernel tests share: an Ops for every SIMD target.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd_target.h"
#include "memory/host_device.h"
#include "tests/support/test_matrix.h"

namespace triphase {

// Runs once per SIMD target; targets that the processor lacks are skipped.
class KernelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      cpu::use_simd_target(GetParam());
    } catch (const Error&) {
      GTEST_SKIP() << "this processor has no " << GetParam();
    }
    setenv("TRIPHASE_SIMD", GetParam(), 1);
    stream_ = device_.make_stream();
    ops_ = make_cpu_ops(pool_);
  }
  void TearDown() override { unsetenv("TRIPHASE_SIMD"); }

  HostDevice device_;
  ThreadPool pool_{2};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  std::mt19937 random_{12345};
};

#define TRIPHASE_KERNEL_TARGETS(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Targets, Suite, testing::Values("avx512", "avx2", "sse4", "scalar"), \
                           [](const auto& test) { return std::string(test.param); })

}  // namespace triphase
