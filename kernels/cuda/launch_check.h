#pragma once

// Checks of host wrappers before a launch: every error names the kernel and its shapes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/dtype.h"

namespace triphase::cuda {

// "rows 64, head_dim 128"
[[nodiscard]] std::string shape_text(
    std::initializer_list<std::pair<std::string_view, std::int64_t>> sizes);

// "x 3 x 64 fp32, y 3 x 128 fp16"
[[nodiscard]] std::string shape_text(
    std::initializer_list<std::pair<std::string_view, ConstMatrix>> matrices);

// Throws an internal error (exit 70).
[[noreturn]] void reject_launch(std::string_view kernel, std::string_view what,
                                const std::string& shape);

// `shape` makes the text of the shapes, only when it is needed: [&] { return shape_text(...); }.
template <class Shape>
void require(bool condition, std::string_view kernel, std::string_view what, const Shape& shape) {
  if (!condition) [[unlikely]] {
    reject_launch(kernel, what, shape());
  }
}

// require() for all rules of one call.
template <class Shape>
class LaunchCheck {
 public:
  LaunchCheck(std::string_view kernel, Shape shape) : kernel_(kernel), shape_(std::move(shape)) {}
  void operator()(bool condition, std::string_view rule) const {
    require(condition, kernel_, rule, shape_);
  }

 private:
  std::string_view kernel_;
  Shape shape_;
};

// Without leave, a kernel may have 48 KiB of shared memory, its fixed arrays included. Calls
// `allow`, which asks the driver and throws when it refuses, unless this kernel got leave for as
// many dynamic bytes on this device before. `kernel` is the kernel's address; any thread.
void raise_shared_bytes(const void* kernel, int device, std::size_t bytes,
                        const std::function<void()>& allow);

}  // namespace triphase::cuda
