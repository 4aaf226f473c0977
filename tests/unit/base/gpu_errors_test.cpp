#include "base/gpu_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace triphase {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(GpuErrors, ADriverOfTheSameMajorVersionWillDo) {
  for (const int driver : {13000, 13010, 14000}) {
    EXPECT_FALSE(driver_error(driver, 13000)) << driver;
    EXPECT_FALSE(driver_error(driver, 13020)) << "minor versions are compatible: " << driver;
  }
}

TEST(GpuErrors, AnOldDriverIsNamedWithTheOneThatIsNeeded) {
  const std::optional<Error> error = driver_error(12040, 13010);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), "E-DEV-NONE");
  EXPECT_EQ(exit_code(error->role()), 5);
  EXPECT_EQ(
      error->message(),
      "GPU driver: one for CUDA 12.4 at most, expected one for CUDA 13.0 or later, which this "
      "program was built with; hint: update the NVIDIA driver; --device=cpu needs none "
      "[E-DEV-NONE]");
}

TEST(GpuErrors, NoDriverIsNotCalledAnOldOne) {
  const std::optional<Error> error = driver_error(0, 13000);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), "E-DEV-NONE");
  EXPECT_THAT(error->message(), HasSubstr("none on this machine"));
  EXPECT_THAT(error->message(), HasSubstr("install the NVIDIA driver"));
}

TEST(GpuErrors, RefusedMemoryComesWithWhatWouldFit) {
  const Error error = gpu_memory_error(30 * kGiB, 20 * kGiB, 10 * kGiB, 80 * kGiB);
  EXPECT_EQ(error.code(), "E-MEM-ALLOC");
  EXPECT_EQ(exit_code(error.role()), 5);
  EXPECT_THAT(error.message(), HasSubstr("30.0 GiB more are refused, this job holds 20.0 GiB, and "
                                         "10.0 GiB of 80.0 GiB are free"));
  // What is free with nothing of this job's, less what is left to others.
  EXPECT_EQ(usable_gpu_memory(30 * kGiB), 30 * kGiB - kGiB / 2 - 30 * kGiB / 25);
  EXPECT_THAT(error.message(), HasSubstr("--device-memory 28979MiB fits"));
  EXPECT_THAT(gpu_memory_error(kGiB, 0, kGiB / 4, 80 * kGiB).message(),
              HasSubstr("hint: free the GPU, or take another one"));
}

}  // namespace
}  // namespace triphase
