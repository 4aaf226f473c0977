#pragma once

// Copies of KV records by the kernel that reads and writes pinned host memory in place
// (stage_rows); records that are not pinned pass through device memory.

#include <functional>
#include <memory>

#include "kernels/kv_records.h"

namespace triphase::cuda {

// Whether kernels may read and write these bytes of the host in place.
using IsPinned = std::function<bool(const void* data, std::size_t bytes)>;

// `device` holds the lists of runs, `host` what travels to it; both must outlive the mover. Pages
// must hold 32, 64 or 128 tokens (checked). `most_blocks`: of a launch; 0: as many as the link
// needs.
[[nodiscard]] std::unique_ptr<KvMover> make_cuda_kv_mover(Device& device, Device& host,
                                                          IsPinned is_pinned, int most_blocks);

}  // namespace triphase::cuda
