#include "kernels/cuda/warpgroup_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/device_block.h"
#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

// A context of three tiles of keys of 16 bits, of four of codes and a partial block.
constexpr std::int64_t kTokens = 300;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kPageTokens = 64;
constexpr std::int64_t kPages = ceil_div(kTokens, kPageTokens);

// Peaked softmax, so that a wrong score shows.
constexpr float kScale = 0.3F;
constexpr float kTolerance = 4e-3F;

class Check {
 public:
  Check(GpuMachine machine, DType dtype, std::int64_t head_dim, Device& device, Stream& stream)
      : machine_(machine),
        dtype_(dtype),
        head_dim_(head_dim),
        queries_(dtype == DType::kInt8 ? kTokens % kPageTokens : kTokens),
        device_(&device),
        stream_(&stream),
        memory_(device, kBytes) {}

  // How far the two ways' results are apart at most; infinity where one is NaN.
  [[nodiscard]] float difference() {
    const std::int64_t columns = kHeads * head_dim_;
    call_.q = random(DType::kF32, queries_, columns, 2.0F);
    call_.q_stride = columns;
    call_.heads = kHeads;
    call_.dtype = dtype_;
    if (dtype_ == DType::kInt8) {
      add_codes();
    } else {
      call_.k = random(dtype_, kPages * kPageTokens, head_dim_, 1.0F);
      call_.v = random(dtype_, kPages * kPageTokens, head_dim_, 1.0F);
    }
    call_.page_tokens = kPageTokens;
    call_.kv_heads = 1;
    call_.head_dim = head_dim_;
    call_.scale = kScale;
    const PagedSegment segment{
        .query_count = queries_, .context_tokens = kTokens, .partial_page = 0};
    call_.segments = static_cast<const PagedSegment*>(upload(&segment, sizeof(segment)));
    call_.segment_count = 1;
    std::array<std::int32_t, kPages> pages{};
    std::iota(pages.begin(), pages.end(), 0);
    call_.pages = static_cast<const std::int32_t*>(upload(pages.data(), sizeof(pages)));
    call_.scale_pages = call_.pages;
    call_.out_stride = columns;
    const std::vector<float> by_warps = attend(false);
    const std::vector<float> by_warpgroups = attend(true);
    float most = 0.0F;
    for (std::size_t i = 0; i < by_warps.size(); ++i) {
      const float apart = std::abs(by_warps[i] - by_warpgroups[i]);
      most = std::isnan(apart) ? std::numeric_limits<float>::infinity() : std::max(most, apart);
    }
    return most;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  void* take(std::size_t bytes) {
    std::byte* const data = memory_.data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    return data;
  }
  void* upload(const void* from, std::size_t bytes) {
    void* const to = take(bytes);
    device_->copy(to, from, bytes, *stream_);
    return to;
  }
  float* random(DType dtype, std::int64_t rows, std::int64_t columns, float half_width) {
    void* const data = take(static_cast<std::size_t>(rows * columns) * dtype_bytes(dtype));
    random_fill(++key_, half_width, {data, dtype, rows, columns, columns}, stream_->launches());
    return static_cast<float*>(data);
  }

  // Any bits are codes. Their scales differ from channel to channel.
  void add_codes() {
    call_.k = random(DType::kF16, kPages * kPageTokens / 2, head_dim_, 1.0F);
    call_.v = random(DType::kF16, kPages * kPageTokens / 2, head_dim_, 1.0F);
    call_.partial_k = random(DType::kF16, kPageTokens, head_dim_, 1.0F);
    call_.partial_v = random(DType::kF16, kPageTokens, head_dim_, 1.0F);
    std::vector<KvScale> scales;
    for (std::int64_t of = 0; of < kPages * 2; ++of) {
      for (std::int64_t c = 0; c < head_dim_; ++c) {
        scales.push_back(kv_scale(0.004F + 0.0005F * static_cast<float>((of + c) % 7),
                                  static_cast<float>(110 + (of + c) % 30)));
      }
    }
    call_.scales =
        static_cast<const KvScale*>(upload(scales.data(), scales.size() * sizeof(KvScale)));
  }

  // Outputs are something else before, so that a kernel that does nothing shows.
  std::vector<float> attend(bool warpgroups) {
    machine_.warpgroups = warpgroups;
    call_.out = random(DType::kF32, queries_, call_.out_stride, 1.0F);
    const std::int64_t blocks =
        prefill_query_blocks(queries_, kHeads, prefill_rows(dtype_, head_dim_));
    prefill_attention(call_, blocks, prefill_splits(blocks, 1, kTokens, 1), machine_,
                      stream_->launches());
    std::vector<float> out(static_cast<std::size_t>(queries_ * call_.out_stride));
    device_->copy(out.data(), call_.out, out.size() * sizeof(float), *stream_);
    stream_->synchronize();
    return out;
  }

  GpuMachine machine_;
  DType dtype_;
  std::int64_t head_dim_;
  std::int64_t queries_;  // with INT8 of one block
  Device* device_;
  Stream* stream_;
  DeviceBlock memory_;
  std::size_t used_ = 0;
  std::uint64_t key_ = 0;
  PagedAttention call_;
};

}  // namespace

std::string warpgroup_problem(const GpuMachine& machine, Device& device, Stream& stream) {
  const char* const allowed = std::getenv("TRIPHASE_WARPGROUPS");
  if (allowed != nullptr && std::string_view(allowed) == "0") return "TRIPHASE_WARPGROUPS is 0";
  try {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
      for (const std::int64_t head_dim : {64, 128}) {
        const float apart = Check(machine, dtype, head_dim, device, stream).difference();
        if (apart <= kTolerance) continue;
        return fmt::format("with {} keys of {} channels they are {:.2g} apart", dtype_name(dtype),
                           head_dim, apart);
      }
    }
  } catch (Error& error) {
    if (error.role() == ErrorRole::kDevice) {
      error.hint("TRIPHASE_WARPGROUPS=0 does without warpgroup products");
    }
    throw;
  }
  return "";
}

}  // namespace triphase::cuda
