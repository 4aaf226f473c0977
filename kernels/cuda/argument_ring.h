#pragma once

// Small arrays that a call has on the host (ids, page tables, segments) on their way to the device:
// copied into a ring of pinned memory and from there, on the call's stream, into a ring on the
// device. An array that the ring still holds is not sent again, so that what is the same in every
// layer goes once a step. When the ring comes round, the host waits for the stream once. One stream
// at a time.

#include <array>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/device.h"

namespace triphase::cuda {

class ArgumentRing {
 public:
  // Both devices must outlive the ring. Larger arrays make it grow.
  ArgumentRing(Device& device, Device& host, std::size_t bytes);
  ~ArgumentRing();
  ArgumentRing(const ArgumentRing&) = delete;
  ArgumentRing& operator=(const ArgumentRing&) = delete;

  // Makes room for the arrays of one call together, so that sending one does not end another.
  void reserve(std::size_t bytes, std::size_t arrays, Stream& stream);

  // The array's place on the device, for work queued on `stream` until the next reserve or, without
  // one, until the next send. An empty array has an address too.
  template <class T>
  [[nodiscard]] const T* send(std::span<const T> values, Stream& stream) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(send_bytes(values.data(), values.size_bytes(), stream));
  }

  // To memory of the caller's, for work queued on `stream`.
  void send_to(void* to, const void* data, std::size_t bytes, Stream& stream);

 private:
  // Where an array lies in both rings.
  struct Sent {
    std::size_t begin = 0;
    std::size_t bytes = 0;  // 0: none
  };
  // More than the arrays of a layer, so that the next layer finds them.
  static constexpr std::size_t kRemembered = 32;

  const void* send_bytes(const void* data, std::size_t bytes, Stream& stream);
  [[nodiscard]] const std::byte* find(const void* data, std::size_t bytes) const;
  void release() noexcept;

  Device* device_;
  Device* host_;
  std::size_t bytes_;
  std::size_t next_ = 0;
  std::byte* on_device_ = nullptr;
  std::byte* on_host_ = nullptr;
  std::array<Sent, kRemembered> sent_{};  // the newest, since the ring came round
  std::size_t sent_count_ = 0;            // in all
};

}  // namespace triphase::cuda
