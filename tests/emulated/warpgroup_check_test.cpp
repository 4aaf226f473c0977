#include "kernels/cuda/warpgroup_check.h"

#include "tests/emulated/emulated_test.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

// Changes one number of what it copies the `wrong_copy`-th time from a device.
class WrongCopies final : public Device {
 public:
  WrongCopies(GuardedDevice& device, int wrong_copy) : device_(&device), left_(wrong_copy) {}
  [[nodiscard]] std::string_view name() const override { return device_->name(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  void release(void* data, std::size_t bytes) noexcept override { device_->release(data, bytes); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    device_->copy(to, from, bytes, stream);
    if (!GuardedMemory::instance().is_device(from) || left_-- != 0) return;
    static_cast<float*>(to)[bytes / sizeof(float) - 1] = change;
  }
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    return device_->allocate_host(bytes);
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    device_->release_host(data, bytes);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override { return device_->make_stream(); }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return device_->make_event(); }

  float change = 3.0F;

 private:
  GuardedDevice* device_;
  int left_;
};

TEST(EmulatedWarpgroupCheck, BothWaysAgreeHere) {
  GuardedMachine machine;
  EXPECT_TRUE(warpgroups_agree(emulated_gpu(), machine.device, *machine.stream));
}

TEST(EmulatedWarpgroupCheck, OneWrongNumberShowsWhicheverTypeAndHead) {
  GuardedMachine machine;
  for (int wrong = 0; wrong < 12; ++wrong) {
    WrongCopies device(machine.device, wrong);
    device.change = wrong % 2 == 0 ? 3.0F : std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(warpgroups_agree(emulated_gpu(), device, *machine.stream)) << wrong;
  }
}

}  // namespace
}  // namespace triphase::cuda
