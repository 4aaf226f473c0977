// gather_attn over F16 keys and values.
#include "kernels/cuda/gather_tiles.h"

namespace triphase::cuda {

void launch_gather_f16(const GatherShape& shape, StreamHandle stream) {
  launch_gather_type<Half>(shape, stream);
}

}  // namespace triphase::cuda
