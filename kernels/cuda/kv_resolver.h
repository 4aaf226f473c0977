#pragma once

// KvResolver by the kernels of resolve.h.

#include <functional>
#include <memory>

#include "base/device.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_resolver.h"
#include "kernels/sizing/resolver_memory.h"

namespace triphase::cuda {

// Takes resolver_layout(shape).bytes of `device`; `host` is memory that it copies from. Both must
// outlive the resolver. Work is queued on `stream` at once.
[[nodiscard]] std::unique_ptr<KvResolver> make_cuda_kv_resolver(
    const ResolverShape& shape, Device& device, Device& host,
    std::function<StreamHandle(Stream&)> stream_handle, Stream& stream);

}  // namespace triphase::cuda
