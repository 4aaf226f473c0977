#pragma once

// Host memory that refuses one allocation, and knows what has not been given back.

#include <cstdint>
#include <unordered_map>

#include "base/error.h"
#include "memory/host_device.h"

namespace triphase {

class RefusingDevice final : public Device {
 public:
  // Refuses the allocation after so many; -1: none.
  explicit RefusingDevice(std::int64_t granted = -1) : granted_(granted) {}

  [[nodiscard]] std::string_view name() const override { return device_.name(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    if (asked_++ == granted_) {
      throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "host memory").found("a test's refusal");
    }
    void* data = device_.allocate(bytes);
    live_.emplace(data, bytes);
    return data;
  }
  void release(void* data, std::size_t bytes) noexcept override {
    const auto at = live_.find(data);
    if (at == live_.end() || at->second != bytes) {
      ++wrong_;
      return;
    }
    live_.erase(at);
    device_.release(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    device_.copy(to, from, bytes, stream);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override { return device_.make_stream(); }

  [[nodiscard]] std::int64_t asked() const { return asked_; }
  // Blocks that nobody gave back, and releases of what was not given.
  [[nodiscard]] std::size_t live() const { return live_.size(); }
  [[nodiscard]] std::int64_t wrong_releases() const { return wrong_; }

 private:
  HostDevice device_;
  std::int64_t granted_;
  std::int64_t asked_ = 0;
  std::int64_t wrong_ = 0;
  std::unordered_map<void*, std::size_t> live_;
};

}  // namespace triphase
