// The GPU of triphase-emulated: "cuda:emulated". The variable TRIPHASE_EMULATED chooses what it
// does to the program, as in "schedule=7,fail-copy=20" (DeviceSettings).

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/gpu_errors.h"
#include "kernels/cpu/ceilings.h"
#include "memory/host_device.h"
#include "runtime/gpu.h"
#include "runtime/gpu_operations.h"
#include "tests/emulated/emulated_device.h"
#include "tests/emulated/emulated_gemm.h"
#include "tests/emulated/emulated_gpu.h"

namespace triphase {
namespace {

constexpr int kCuda = 13000;

struct Settings {
  emulated::DeviceSettings device;
  // 0: as if cuBLASLt were not installed; 2: its products depend on the number of rows.
  int products = 1;
  int driver = kCuda;  // as driver_error() has it
};

constexpr std::string_view kNames =
    "counts, driver, fail-allocation, fail-copy, fail-launch, fail-pin, library, memory, "
    "refuse-graphs or schedule";

[[noreturn]] void refuse(std::string_view found, std::string_view expected) {
  throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "TRIPHASE_EMULATED")
      .found(found)
      .expected(expected);
}

// Settings by name, as TRIPHASE_EMULATED has them: "schedule=7,fail-copy=20".
std::map<std::string, std::string> values_of(const char* text) {
  std::map<std::string, std::string> values;
  std::istringstream all(text);
  for (std::string part; std::getline(all, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) refuse(part, "NAME=VALUE,...");
    values[part.substr(0, equals)] = part.substr(equals + 1);
  }
  return values;
}

Settings settings_from_environment() {
  Settings all_settings;
  emulated::DeviceSettings& settings = all_settings.device;
  const char* text = std::getenv("TRIPHASE_EMULATED");
  std::map<std::string, std::string> values = values_of(text == nullptr ? "" : text);
  settings.counts_file = values["counts"];
  values.erase("counts");
  const auto take = [&](const char* name, auto& to) {
    const auto found = values.find(name);
    if (found == values.end()) return;
    const std::string& digits = found->second;
    std::uint64_t number = 0;
    const auto [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (problem != std::errc() || end != digits.data() + digits.size()) {
      refuse(fmt::format("{}={}", name, digits), fmt::format("a number for {}", name));
    }
    to = static_cast<std::remove_reference_t<decltype(to)>>(number);
    values.erase(found);
  };
  take("schedule", settings.schedule);
  take("memory", settings.memory);
  take("fail-allocation", settings.fail_allocation);
  take("fail-pin", settings.fail_pin);
  take("fail-launch", settings.fail_launch);
  take("fail-copy", settings.fail_copy);
  take("refuse-graphs", settings.refuse_graphs);
  take("library", all_settings.products);
  take("driver", all_settings.driver);
  if (!values.empty()) refuse(values.begin()->first, kNames);
  return all_settings;
}

}  // namespace

// "auto" of tests stays on the CPU.
int gpu_count() { return 0; }

std::string gpu_problem() {
  const int driver = settings_from_environment().driver;
  const std::optional<Error> error = driver_error(driver, kCuda);
  return driver > 0 && error ? error->message() : std::string();
}

bool built_with_gpu() { return true; }

BackendParts open_gpu(std::string_view name, bool deterministic, ThreadPool& threads) {
  if (name != "cuda:emulated") {
    throw Error(ErrorRole::kResources, "E-DEV-NONE", "--device")
        .found(name)
        .expected("cpu or cuda:emulated");
  }
  const Settings settings = settings_from_environment();
  if (const std::optional<Error> error = driver_error(settings.driver, kCuda)) throw Error(*error);
  auto device = std::make_unique<emulated::EmulatedDevice>(settings.device);
  emulated::EmulatedDevice* gpu_device = device.get();
  BackendParts gpu;
  gpu.device = std::move(device);
  gpu.host = std::make_unique<emulated::EmulatedHost>(*gpu_device, threads.threads());
  gpu.stream = gpu.device->make_stream();
  gpu.machine = cuda::emulated_gpu(deterministic);
  gpu.machine.memory = gpu_device->free_bytes();
  std::unique_ptr<cuda::Gemm> gemm;
  if (settings.products > 0 && !deterministic) {
    gemm = std::make_unique<emulated::EmulatedGemm>(settings.products == 2);
  }
  gpu.products = gemm ? gemm->origin() : "TRIPHASE_EMULATED has none";
  const std::string_view products = deterministic ? ", deterministic" : gemm ? "" : ", no cuBLASLt";
  add_operations(gpu, fmt::format("cuda:emulated (an emulated GPU, on the CPU{})", products),
                 std::move(gemm));
  // The CPU's, which runs the kernels.
  gpu.measure_ceilings = [&threads](int runs) {
    HostDevice host;
    return cpu::measure_ceilings(threads, host, runs);
  };
  return gpu;
}

}  // namespace triphase
