#include "kernels/cuda/host_staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "memory/host_device.h"

namespace triphase::cuda {
namespace {

// Copies run when somebody waits, in order, as they may on a GPU.
class LateStream final : public Stream {
 public:
  void synchronize() override {
    for (const HostTransfer& copy : queued) std::memcpy(copy.to, copy.from, copy.bytes);
    queued.clear();
  }
  std::vector<HostTransfer> queued;
};

class LateDevice final : public Device {
 public:
  [[nodiscard]] std::string_view name() const override { return "late"; }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return host_.allocate(bytes); }
  void release(void* data, std::size_t bytes) noexcept override { host_.release(data, bytes); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    dynamic_cast<LateStream&>(stream).queued.push_back({to, from, bytes});
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<LateStream>();
  }

 private:
  HostDevice host_;
};

// Pieces of the pinned block are reused only after a wait, and sources may change at once.
TEST(HostStaging, ArraysOfAnySizeArriveWhole) {
  LateDevice device;
  HostDevice host;
  const auto stream = device.make_stream();
  HostStaging staging(device, host);
  for (const std::size_t count : {1U, 1000U, 262144U, 262145U, 900000U}) {
    std::vector<std::uint32_t> first(count);
    std::iota(first.begin(), first.end(), 7U);
    std::vector<std::uint32_t> second(77, static_cast<std::uint32_t>(count));
    std::vector<std::uint32_t> on_device(count + 77, 0xFFFFFFFFU);
    const HostTransfer there[] = {{on_device.data(), first.data(), count * 4},
                                  {on_device.data() + count, second.data(), 77 * 4}};
    staging.to_device(there, *stream);
    const std::vector<std::uint32_t> sent_first = first;
    const std::vector<std::uint32_t> sent_second = second;
    first.assign(count, 0);
    second.assign(77, 0);
    // Once more: the copies above may still be reading the block.
    const std::uint32_t mark = 5;
    std::uint32_t mark_on_device = 0;
    const HostTransfer one{&mark_on_device, &mark, sizeof(mark)};
    staging.to_device({&one, 1}, *stream);
    const HostTransfer back[] = {{first.data(), on_device.data(), count * 4},
                                 {second.data(), on_device.data() + count, 77 * 4}};
    staging.to_host(back, *stream);
    EXPECT_EQ(first, sent_first) << count;
    EXPECT_EQ(second, sent_second) << count;
    EXPECT_EQ(mark_on_device, mark);
  }
}

}  // namespace
}  // namespace triphase::cuda
