#pragma once

// Products by the library (gemm.h), which reads activations in the weights' type: room for rounded
// rows, and whether the library serves. Not thread safe.

#include <memory>

#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/gemm.h"
#include "kernels/sizing/compute_machine.h"

namespace triphase::cuda {

class LibraryGemm {
 public:
  // `gemm` null, or `deterministic`: it serves nothing.
  LibraryGemm(Device& device, std::unique_ptr<Gemm> gemm, bool deterministic);

  // Allocates so many bytes for rounded rows.
  void reserve(std::size_t bytes, Stream& stream) { (void)rounded_.at_least(bytes, stream); }

  // Whether run() may be asked, and for y = x w^T.
  [[nodiscard]] bool serves() const { return gemm_ != nullptr && !deterministic_; }
  [[nodiscard]] bool serves(const ConstMatrix& x, const ConstMatrix& y) const;
  // Room for x in the weights' type, rows padded to what tensor cores read at once. Until the next
  // call, as rounded().
  [[nodiscard]] Matrix rounded_rows(const ConstMatrix& x, DType dtype, Stream& stream);
  // x in the weights' type.
  [[nodiscard]] ConstMatrix rounded(ConstMatrix x, DType dtype, Stream& stream);
  // As Gemm::run, of the first `cols` columns of x.
  [[nodiscard]] bool run(ConstMatrix x, std::int64_t cols, ConstMatrix w, const float* bias,
                         bool accumulate, Matrix y, StreamHandle handle);

 private:
  std::unique_ptr<Gemm> gemm_;
  bool deterministic_;
  DeviceScratch rounded_;
};

}  // namespace triphase::cuda
