// `triphase doctor`: one line per check of this machine, and paragraphs about error codes.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/format_bytes.h"
#include "base/json_writer.h"
#include "runtime/backend.h"
#include "runtime/build_info.h"
#include "runtime/error_catalog.h"
#include "runtime/machine.h"
#include "runtime/refuse.h"
#include "tools/commands.h"

namespace triphase {
namespace {

constexpr std::uint64_t kLittleMemory = std::uint64_t{256} << 20;
constexpr std::uint64_t kLittleDisk = std::uint64_t{64} << 20;
constexpr std::uint64_t kFewDescriptors = 64;

enum class Verdict { kOk, kWarn, kFail };

struct Check {
  Verdict verdict;
  std::string name;
  std::string text;
};

std::string_view verdict_name(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarn ? "warn" : "fail";
}

Check check_memory(const MachineInfo& machine) {
  const std::uint64_t usable = usable_host_memory();
  std::string text = fmt::format("{} available of {}", format_bytes(machine.memory_available),
                                 format_bytes(machine.memory_total));
  if (machine.cgroup_left) {
    text +=
        fmt::format(", {} left in this container or cgroup", format_bytes(*machine.cgroup_left));
  }
  if (usable >= kLittleMemory) return {Verdict::kOk, "memory", text};
  return {Verdict::kFail, "memory",
          text + fmt::format("; a run needs {}", format_bytes(kLittleMemory))};
}

Check check_simd(const MachineInfo& machine) {
  if (machine.simd_sufficient) return {Verdict::kOk, "vector instructions", machine.simd};
  return {Verdict::kWarn, "vector instructions",
          machine.simd + "; expected AVX2, FMA and F16C for full speed"};
}

Check check_cuda(const MachineInfo& machine) {
  if (!machine.cuda_driver) {
    return {Verdict::kOk, "CUDA", "no driver (libcuda.so.1)"};
  }
  if (!built_with_gpu()) {
    return {Verdict::kWarn, "CUDA", "a driver is here, but this program was built without CUDA"};
  }
  const int count = gpu_count();
  if (count == 0) {
    const std::string problem = gpu_problem();
    return {
        Verdict::kWarn, "CUDA",
        problem.empty() ? "a driver is here, but no GPU that it or this build can use" : problem};
  }
  return {
      Verdict::kOk, "CUDA",
      count == 1 ? "1 GPU, cuda:0" : fmt::format("{} GPUs, cuda:0 to cuda:{}", count, count - 1)};
}

// What a run with this --device would compute on, and on a GPU with which library.
void check_device(const std::string& name, std::vector<Check>& checks) {
  try {
    const auto backend = Backend::open(name, 0);
    const std::optional<GpuMachine>& gpu = backend->machine().gpu;
    std::string text =
        fmt::format("--device {} is {}, {} threads, {} for a job", name, backend->ops().name(),
                    backend->threads().threads(), format_bytes(backend->default_memory()));
    if (gpu) text += "; KV and weights that do not fit stay in host memory";
    checks.push_back({Verdict::kOk, "device", text});
    if (!gpu) return;
    checks.push_back(gpu->gemm_library
                         ? Check{Verdict::kOk, "matrix products", backend->products()}
                         : Check{Verdict::kFail, "matrix products",
                                 fmt::format("no cuBLASLt, so that only runs with --deterministic "
                                             "start: {} (triphase doctor --error E-DEV-LIBRARY)",
                                             backend->products())});
    const std::string& problem = backend->warpgroup_problem();
    checks.push_back(
        problem.empty()
            ? Check{Verdict::kOk, "prompts' attention",
                    gpu->warpgroups ? "by warpgroup products (wgmma)" : "by warps' products (mma)"}
            : Check{Verdict::kWarn, "prompts' attention",
                    "by warps' products (mma), not warpgroup products (wgmma): " + problem});
  } catch (const Error& error) {
    if (error.role() == ErrorRole::kUsage) throw;
    checks.push_back({Verdict::kFail, "device", error.message()});
  }
}

// Of a run started here.
Check check_output_directory() {
  struct statvfs facts = {};
  if (::statvfs(".", &facts) != 0) {
    return {Verdict::kFail, "output directory", fmt::format(".: {}", std::strerror(errno))};
  }
  const std::uint64_t free = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  const std::string text = fmt::format(".: {} free", format_bytes(free));
  if (::access(".", W_OK | X_OK) != 0) {
    return {Verdict::kFail, "output directory", text + ", not writable"};
  }
  return {free < kLittleDisk ? Verdict::kWarn : Verdict::kOk, "output directory", text};
}

// A nameless file there, so that nothing is left behind whatever happens.
Check check_locks() {
  const int fd = ::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return {Verdict::kWarn, "file locks", fmt::format("not tested ({})", std::strerror(errno))};
  }
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  const std::string reason = locked ? "" : std::strerror(errno);
  ::close(fd);
  if (locked) return {Verdict::kOk, "file locks", "work in the output directory"};
  return {Verdict::kWarn, "file locks", reason + "; runs need --no-lock here"};
}

Check check_descriptors() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return {Verdict::kWarn, "file descriptors", std::strerror(errno)};
  }
  const std::string text = fmt::format("{} (ulimit -n)", limit.rlim_cur);
  return {limit.rlim_cur < kFewDescriptors ? Verdict::kWarn : Verdict::kOk, "file descriptors",
          text};
}

std::vector<Check> check_machine(const std::string& device) {
  const MachineInfo machine = inspect_machine();
  std::vector<Check> checks;
  checks.push_back({Verdict::kOk, "program",
                    fmt::format("triphase {}, commit {}, {}, {}", program_version(), build_commit(),
                                build_type(), compiler())});
  checks.push_back({Verdict::kOk, "processor",
                    fmt::format("{}, {} usable cores", escape_untrusted(machine.cpu_name),
                                machine.usable_cores)});
  checks.push_back(check_simd(machine));
  checks.push_back(check_memory(machine));
  checks.push_back(check_cuda(machine));
  check_device(device, checks);
  checks.push_back(check_output_directory());
  checks.push_back(check_locks());
  checks.push_back(check_descriptors());
  return checks;
}

std::string as_json(const std::vector<Check>& checks) {
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  json.begin_array();
  for (const Check& check : checks) {
    json.object(
        {{"check", check.name}, {"result", verdict_name(check.verdict)}, {"text", check.text}});
  }
  json.end();
  return out + "\n";
}

std::string as_text(const std::vector<Check>& checks) {
  std::string out;
  for (const Check& check : checks) {
    out += fmt::format("{:<5}{:<21}{}\n", verdict_name(check.verdict), check.name, check.text);
  }
  return out;
}

int explain(const std::string& code) {
  const std::optional<std::string_view> text = explain_error(code);
  if (!text) {
    std::vector<std::string_view> codes;
    for (const ErrorExplanation& entry : error_catalog()) codes.push_back(entry.code);
    const std::string nearest = nearest_name(code, codes);
    refuse_option("--error", code, "a code as error messages show it in brackets",
                  nearest.empty() ? "docs/errors.md lists them all"
                                  : fmt::format("did you mean {}?", nearest));
  }
  print(fmt::format("{}: {}\n", code, *text));
  return 0;
}

}  // namespace

int cmd_doctor(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("doctor", arguments, log);
  if (values.has("error")) return explain(values.text("error"));
  const std::vector<Check> checks = check_machine(values.text("device"));
  print(values.text("format") == "json" ? as_json(checks) : as_text(checks));
  for (const Check& check : checks) {
    if (check.verdict == Verdict::kFail) return exit_code(ErrorRole::kResources);
  }
  return 0;
}

}  // namespace triphase
