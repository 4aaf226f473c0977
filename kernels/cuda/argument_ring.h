#pragma once

// Small arrays that the host has for kernels (ids, page tables, rows of a choice) on their way to
// the device: put into pinned memory, and sent from there on the call's stream. Arrays that a
// step's operations announce go as one copy, and stay until the next step begins. Steps take halves
// of the pinned memory in turn, and the same place on the device: a copy comes behind all that the
// stream did before, and graphs of launches find their arguments where they were. The others go one
// by one through a ring; each time round, the host waits for the stream once. An array that is
// still there is not sent again. One stream at a time.

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/device_block.h"

namespace triphase::cuda {

class ArgumentRing {
 public:
  // Both devices must outlive the ring. Larger arrays make it grow.
  ArgumentRing(Device& device, Device& host, std::size_t bytes);

  // Grows to so many bytes, in two halves that steps take in turn. Between steps.
  void at_least(std::size_t bytes, Stream& stream);

  // A step begins: arrays of the one before are gone. Until end_announcing() arrays are put, not
  // sent; then they go together.
  void begin_step(Stream& stream);
  void end_announcing(Stream& stream);
  // Whether operations say what they will take, and do nothing.
  [[nodiscard]] bool announcing() const { return announcing_; }
  // Steps that have begun: what was announced in one is there until the next begins.
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

  // Makes room for the arrays of one call together, so that sending one does not end another.
  void reserve(std::size_t bytes, std::size_t arrays, Stream& stream);

  // The array's place on the device, for work queued on `stream`: of an announced array until the
  // next step begins, else until the next reserve or, without one, until the next send. An empty
  // array has an address too.
  template <class T>
  [[nodiscard]] const T* send(std::span<const T> values, Stream& stream) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(send_bytes(values.data(), values.size_bytes(), stream));
  }
  // As send(), but the array stays until the next step begins in any case.
  template <class T>
  [[nodiscard]] const T* keep(std::span<const T> values, Stream& stream) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(keep_bytes(values.data(), values.size_bytes(), stream));
  }

 private:
  struct Block {
    DeviceBlock on_host;
    DeviceBlock on_device;
  };
  struct Sent {
    const std::byte* on_device = nullptr;
    const std::byte* on_host = nullptr;
    std::size_t bytes = 0;
  };
  // Of arrays that do not stay: more than those of a layer, so that the next layer finds
  // them.
  static constexpr std::size_t kRemembered = 32;
  static constexpr std::size_t kHalves = 2;  // one is filled while the other is on its way

  // Where the block's byte `at` of the host goes.
  [[nodiscard]] std::byte* on_device(std::size_t at) const {
    return block_.on_device.data() + (at - begin_);
  }
  const void* send_bytes(const void* data, std::size_t bytes, Stream& stream);
  const void* keep_bytes(const void* data, std::size_t bytes, Stream& stream);
  // The array's place, if it is there: of those of `sent`.
  [[nodiscard]] static const std::byte* find(std::span<const Sent> sent, const void* data,
                                             std::size_t bytes);
  // Puts an array behind the others.
  [[nodiscard]] Sent put(const void* data, std::size_t bytes, Stream& stream);
  // What was put since the last time.
  void copy_to_device(Stream& stream);
  void grow(std::size_t bytes, Stream& stream);
  [[nodiscard]] Block allocate(std::size_t bytes) const {
    return {DeviceBlock(*host_, bytes), DeviceBlock(*device_, bytes)};
  }
  void forget_sent();

  Device* device_;
  Device* host_;
  Block block_;
  std::vector<Block> outgrown_;  // the step's first arrays are there
  // Of the block on the host: the part in use, how far it is filled and copied, and its arrays that
  // stay until the step ends.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t next_ = 0;
  std::size_t copied_ = 0;
  std::size_t kept_end_ = 0;
  std::vector<Sent> kept_;
  std::array<Sent, kRemembered> sent_{};  // the newest, since the ring came round
  std::size_t sent_count_ = 0;            // in all
  bool announcing_ = false;
  std::uint64_t steps_ = 0;
  std::size_t half_ = 0;
  std::array<std::unique_ptr<Event>, kHalves> copied_events_;  // none: no step has begun
};

}  // namespace triphase::cuda
