#include "kernels/cuda/warpgroup_check.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "tests/emulated/emulated_test.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

// Changes the last number of what it copies the `wrong_copy`-th time from a device.
class WrongCopies final : public GuardedDevice {
 public:
  WrongCopies(int wrong_copy, float wrong) : left_(wrong_copy), wrong_(wrong) {}
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    GuardedDevice::copy(to, from, bytes, stream);
    if (!GuardedMemory::instance().is_device(from) || left_-- != 0) return;
    static_cast<float*>(to)[bytes / sizeof(float) - 1] = wrong_;
  }

 private:
  int left_;
  float wrong_;
};

TEST(EmulatedWarpgroupCheck, BothWaysAgreeHere) {
  GuardedMachine machine;
  EXPECT_EQ(warpgroup_problem(emulated_gpu(), machine.device, *machine.stream), "");
}

TEST(EmulatedWarpgroupCheck, AVariableForbidsThem) {
  GuardedMachine machine;
  ::setenv("TRIPHASE_WARPGROUPS", "0", 1);
  const std::string problem = warpgroup_problem(emulated_gpu(), machine.device, *machine.stream);
  ::unsetenv("TRIPHASE_WARPGROUPS");
  EXPECT_EQ(problem, "TRIPHASE_WARPGROUPS is 0");
}

// A device whose copies fail as those of a faulted one do.
class FailingCopies final : public GuardedDevice {
 public:
  void copy(void*, const void*, std::size_t, Stream&) override {
    throw Error(ErrorRole::kDevice, "E-DEV-CUDA", "device").found("a fault");
  }
};

TEST(EmulatedWarpgroupCheck, AFaultHintsAtTheVariable) {
  GuardedMachine machine;
  FailingCopies device;
  try {
    (void)warpgroup_problem(emulated_gpu(), device, *machine.stream);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "TRIPHASE_WARPGROUPS=0 does without warpgroup products");
  }
}

TEST(EmulatedWarpgroupCheck, OneWrongNumberShowsWhicheverTypeAndHead) {
  GuardedMachine machine;
  for (int wrong = 0; wrong < 12; ++wrong) {
    WrongCopies device(wrong, wrong % 2 == 0 ? 3.0F : std::numeric_limits<float>::quiet_NaN());
    const char* const begin = wrong < 4   ? "with fp16 keys of "
                              : wrong < 8 ? "with bf16 keys of "
                                          : "with int8 keys of ";
    EXPECT_THAT(warpgroup_problem(emulated_gpu(), device, *machine.stream),
                testing::StartsWith(begin))
        << wrong;
  }
}

}  // namespace
}  // namespace triphase::cuda
