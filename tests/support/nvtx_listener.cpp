// A profiler's place taken by a test: NVTX loads this library (NVTX_INJECTION64_PATH) and calls it
// for every range. When the process ends it writes to NVTX_LISTENER_FILE a line for each name with
// how often it was opened, and one with how many ranges were still open.

#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Heard {
  std::mutex mutex;
  std::map<std::string, long> opened;
  long open = 0;
  std::string domain;

  ~Heard() {
    const char* path = std::getenv("NVTX_LISTENER_FILE");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file, "%ld still open in %s\n", open, domain.c_str());
    for (const auto& [name, count] : opened) std::fprintf(file, "%ld %s\n", count, name.c_str());
    std::fclose(file);
  }
};

Heard& heard() {
  static Heard all;
  return all;
}

nvtxDomainHandle_t on_domain(const char* name) {
  const std::lock_guard lock(heard().mutex);
  heard().domain = name;
  return reinterpret_cast<nvtxDomainHandle_t>(&heard());
}

int on_push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  const std::lock_guard lock(heard().mutex);
  ++heard().opened[range->message.ascii];
  return static_cast<int>(heard().open++);
}

int on_pop(nvtxDomainHandle_t) {
  const std::lock_guard lock(heard().mutex);
  return static_cast<int>(--heard().open);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  heard();
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&on_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&on_push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&on_pop);
  return 1;
}
