#include "kernels/cuda/launch_check.h"

#include <map>
#include <mutex>

#include "base/error.h"

namespace triphase::cuda {

std::string shape_text(std::initializer_list<std::pair<std::string_view, std::int64_t>> sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) {
    if (!text.empty()) text += ", ";
    text += std::string(name) + " " + std::to_string(size);
  }
  return text;
}

std::string shape_text(std::initializer_list<std::pair<std::string_view, ConstMatrix>> matrices) {
  std::string text;
  for (const auto& [name, matrix] : matrices) {
    if (!text.empty()) text += ", ";
    text += std::string(name) + " " + std::to_string(matrix.rows) + " x " +
            std::to_string(matrix.cols) + " " + std::string(dtype_name(matrix.dtype));
  }
  return text;
}

void reject_launch(std::string_view kernel, std::string_view what, const std::string& shape) {
  throw Error(ErrorRole::kInternal, "E-INT-CHECK", kernel)
      .found(std::string(what) + " (" + shape + ")")
      .hint("this is a bug; finished records are kept, run the same command to resume");
}

void raise_shared_bytes(const void* kernel, int device, std::size_t bytes,
                        const std::function<void()>& allow) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  // Held while the driver is asked: a smaller launch of another thread must find the larger leave.
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  allow();
  most = bytes;
}

}  // namespace triphase::cuda
