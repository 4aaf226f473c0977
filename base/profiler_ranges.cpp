#include <nvtx3/nvToolsExt.h>

#include "base/trace.h"

namespace triphase {
namespace {

nvtxDomainHandle_t domain() noexcept {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("triphase");
  return handle;
}

}  // namespace

void push_profiler_range(const char* name) noexcept {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &range);
}

void pop_profiler_range() noexcept { nvtxDomainRangePop(domain()); }

}  // namespace triphase
