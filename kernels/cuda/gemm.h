#pragma once

// A library's matrix product behind CudaOps, where one is installed.

#include <string>
#include <string_view>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

class Gemm {
 public:
  virtual ~Gemm() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  // The name with the file it came from, for people.
  [[nodiscard]] virtual std::string origin() const { return std::string(name()); }

  // y = x w^T + bias, plus y's old value when `accumulate`. x and w of one type (F32, F16, BF16), y
  // and bias F32, sums F32. Returns false, having done nothing, when the library has no kernel for
  // the shape.
  [[nodiscard]] virtual bool run(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate,
                                 Matrix y, StreamHandle stream) = 0;
};

}  // namespace triphase::cuda
