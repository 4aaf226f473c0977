#include "base/error.h"
#include "runtime/gpu.h"

namespace triphase {

int gpu_count() { return 0; }

std::string gpu_problem() { return {}; }

bool built_with_gpu() { return false; }

BackendParts open_gpu(std::string_view name, bool, ThreadPool&) {
  throw Error(ErrorRole::kResources, "E-DEV-NONE", "--device")
      .found(name)
      .expected("auto or cpu: this program was built without CUDA");
}

}  // namespace triphase
