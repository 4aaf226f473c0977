#pragma once

// KvResolver by the kernels of resolve.h.

#include <memory>

#include "base/device.h"
#include "kernels/cuda/argument_ring.h"
#include "kernels/kv_resolver.h"
#include "kernels/sizing/resolver_memory.h"

namespace triphase::cuda {

// Takes resolver_layout(shape).bytes of `device`; `host` is memory that it copies to. Both must
// outlive the resolver. `arguments` (make_cuda_ops): of its tables. Work is queued on `stream` at
// once.
[[nodiscard]] std::unique_ptr<KvResolver> make_cuda_kv_resolver(
    const ResolverShape& shape, Device& device, Device& host,
    std::shared_ptr<ArgumentRing> arguments, Stream& stream);

}  // namespace triphase::cuda
