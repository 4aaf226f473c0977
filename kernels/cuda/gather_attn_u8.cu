// gather_attn over INT8 keys and values.
#include "kernels/cuda/gather_tiles.h"

namespace triphase::cuda {

void launch_gather_u8(const GatherShape& shape, StreamHandle stream) {
  launch_gather_type<std::uint8_t>(shape, stream);
}

}  // namespace triphase::cuda
