#pragma once

// The CPU as a device: memory from the system, copies by memcpy, streams that are always in step.
// Large blocks come straight from mmap, untouched and huge-page friendly, so that a generous KV
// pool costs nothing until tokens arrive. Thread safe.

#include "base/device.h"

namespace triphase {

class HostDevice final : public Device {
 public:
  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] bool runs_at_once() const override { return true; }
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override;
};

}  // namespace triphase
