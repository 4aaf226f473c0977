#pragma once

// Threads that the system may refuse.

#include <functional>
#include <thread>

namespace triphase {

// Throws ErrorRole::kResources E-MEM-THREADS.
[[nodiscard]] std::thread start_thread(std::function<void()> body);

}  // namespace triphase
