#include "kernels/cuda/warpgroup_check.h"

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
  EXPECT_TRUE(warpgroups_agree(emulated_gpu(), machine.device, *machine.stream));
}

TEST(EmulatedWarpgroupCheck, OneWrongNumberShowsWhicheverTypeAndHead) {
  GuardedMachine machine;
  for (int wrong = 0; wrong < 12; ++wrong) {
    WrongCopies device(wrong, wrong % 2 == 0 ? 3.0F : std::numeric_limits<float>::quiet_NaN());
    EXPECT_FALSE(warpgroups_agree(emulated_gpu(), device, *machine.stream)) << wrong;
  }
}

}  // namespace
}  // namespace triphase::cuda
