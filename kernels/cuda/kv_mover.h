#pragma once

// Copies of KV records by the kernel that reads and writes pinned host memory in place
// (stage_rows).

#include <functional>
#include <memory>

#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_records.h"

namespace triphase::cuda {

// `device` holds the lists of runs, `host` what travels to it; both must outlive the mover. Pages
// must hold 32, 64 or 128 tokens (checked).
[[nodiscard]] std::unique_ptr<KvMover> make_cuda_kv_mover(
    Device& device, Device& host, std::function<StreamHandle(Stream&)> stream_handle);

}  // namespace triphase::cuda
