// gather_attn over BF16 keys and values.
#include "kernels/cuda/gather_tiles.h"

namespace triphase::cuda {

void launch_gather_bf16(const GatherShape& shape, StreamHandle stream) {
  launch_gather_type<BFloat16>(shape, stream);
}

}  // namespace triphase::cuda
