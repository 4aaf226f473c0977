#include "base/gpu_errors.h"

#include <fmt/format.h>

#include <string>

#include "base/format_bytes.h"

namespace triphase {
namespace {

constexpr double kReservedShare = 0.04;
constexpr std::uint64_t kReservedBytes = std::uint64_t{512} << 20;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::string version(int cuda) { return fmt::format("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10); }

}  // namespace

std::optional<Error> driver_error(int driver, int runtime) {
  // Drivers run programs of every later minor version too.
  const int needed = runtime / 1000 * 1000;
  if (driver >= needed) return std::nullopt;
  Error error(ErrorRole::kResources, "E-DEV-NONE", "GPU driver");
  error.found(driver == 0 ? "none on this machine"
                          : fmt::format("one for {} at most", version(driver)));
  error.expected(
      fmt::format("one for {} or later, which this program was built with", version(needed)));
  error.hint(fmt::format("{} the NVIDIA driver; --device=cpu needs none",
                         driver == 0 ? "install" : "update"));
  return error;
}

std::uint64_t usable_gpu_memory(std::uint64_t free) {
  const auto reserved =
      kReservedBytes + static_cast<std::uint64_t>(kReservedShare * static_cast<double>(free));
  return free > reserved ? free - reserved : 0;
}

Error gpu_memory_error(std::uint64_t bytes, std::uint64_t held, std::uint64_t free,
                       std::uint64_t total) {
  Error error(ErrorRole::kResources, "E-MEM-ALLOC", "GPU memory");
  error.found(fmt::format("{} more are refused, this job holds {}, and {} of {} are free",
                          format_bytes(bytes), format_bytes(held), format_bytes(free),
                          format_bytes(total)));
  error.expected("memory for the weights and the KV cache");
  const std::uint64_t fits = usable_gpu_memory(held + free) / kMiB;
  error.hint(fits > 0 ? fmt::format("--device-memory {}MiB fits, if nothing else takes more of the "
                                    "GPU meanwhile",
                                    fits)
                      : "free the GPU, or take another one");
  return error;
}

}  // namespace triphase
