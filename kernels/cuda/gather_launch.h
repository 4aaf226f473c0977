#pragma once

// Which of gather_attn's kernels serves a shape. Included by one source file per element type.

#include "kernels/cuda/gather_cores.h"
#include "kernels/cuda/gather_tiles.h"

namespace triphase::cuda {

// kDim: the kernels' channels, at least head_dim.
template <class E, int kDim>
void launch_gather_dim(const GatherShape& shape, StreamHandle stream) {
  if (shape.group == 1) {
    launch_gather_cores<E, 1, kDim / kGatherVector>(shape, stream);
  } else if (shape.group <= kGatherCoreGroup) {
    launch_gather_cores<E, 2, kDim / kGatherVector>(shape, stream);
  } else {
    launch_gather_tiles<E, kDim>(shape, stream);
  }
}

template <class E>
void launch_gather_type(const GatherShape& shape, StreamHandle stream) {
  if (shape.cache.head_dim <= 64) {
    launch_gather_dim<E, 64>(shape, stream);
  } else if (shape.cache.head_dim <= 128) {
    launch_gather_dim<E, 128>(shape, stream);
  } else {
    launch_gather_dim<E, 256>(shape, stream);
  }
}

}  // namespace triphase::cuda
