#include "base/start_thread.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace triphase {

std::thread start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& failure) {
    throw Error(ErrorRole::kResources, "E-MEM-THREADS", "threads")
        .found(failure.what())
        .expected("the system to start a thread")
        .hint("raise the limit (ulimit -u, ulimit -v), or lower --threads");
  }
}

}  // namespace triphase
