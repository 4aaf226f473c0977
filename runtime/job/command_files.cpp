#include "runtime/job/command_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "models/files/model_file_names.h"

namespace triphase {
namespace {

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

// What two names of one file have in common although it is not there yet.
using Place = std::tuple<dev_t, ino_t, std::string>;
Place place_of(const std::string& path) {
  const std::optional<struct stat> directory = status_of(directory_of(path));
  if (!directory) return {0, 0, path};
  return {directory->st_dev, directory->st_ino, std::filesystem::path(path).filename().string()};
}

[[noreturn]] void refuse(const std::string& option, const std::string& path, bool companion,
                         const std::string& found, std::string_view expected) {
  throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", option)
      .file(path)
      .found(companion ? fmt::format("{}, where a companion of {} belongs", found, option) : found)
      .expected(expected);
}

}  // namespace

void CommandFiles::add_input(std::string option, std::string path) {
  std::error_code failed;
  if (!std::filesystem::is_directory(path, failed)) {
    inputs_.push_back({std::move(option), std::move(path)});
    return;
  }
  std::filesystem::directory_iterator entry(path, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (is_model_file(entry->path().filename().string())) {
      inputs_.push_back({option, entry->path().string()});
    }
  }
  const std::filesystem::path tools = std::filesystem::path(path) / kToolTemplate;
  if (std::filesystem::exists(tools, failed)) inputs_.push_back({option, tools.string()});
}

void CommandFiles::add_output(std::string option, std::string path, OutputKind kind) {
  outputs_.push_back({std::move(option), std::move(path), kind, /*companion=*/false});
}

void CommandFiles::add_companions(const std::string& option,
                                  const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    outputs_.push_back({option, path, OutputKind::kFile, /*companion=*/true});
  }
}

void CommandFiles::check() const {
  for (const Output& output : outputs_) {
    check_target(output);
    check_inputs(output);
    check_others(output);
  }
}

void CommandFiles::check_target(const Output& output) const {
  const std::string directory = directory_of(output.path);
  const std::optional<struct stat> status = status_of(directory);
  if (!status) throw_io_error(directory, "open", errno);
  if (!S_ISDIR(status->st_mode)) throw_io_error(directory, "open", ENOTDIR);
  // A working directory that was removed has a status still.
  std::error_code gone;
  if (directory == ".") (void)std::filesystem::current_path(gone);
  if (gone) throw_io_error(directory, "open", gone.value());
  if (output.kind == OutputKind::kFile) check_temporary_name(output.path);
  const std::string found = unfit_output(output.path, output.kind);
  if (!found.empty()) {
    refuse(output.option, output.path, output.companion, found,
           found == "a directory" ? "a file name" : "a regular file");
  }
  // What is written in place needs no new name.
  const bool in_place = output.kind == OutputKind::kStream && path_exists(output.path);
  if (!in_place && ::access(directory.c_str(), W_OK | X_OK) != 0) {
    throw_io_error(directory, "open", errno);
  }
}

void CommandFiles::check_inputs(const Output& output) const {
  const std::optional<struct stat> there = status_of(output.path);
  if (!there || !S_ISREG(there->st_mode)) return;
  for (const Input& input : inputs_) {
    const std::optional<struct stat> read = status_of(input.path);
    if (!read || !same_file(*read, *there)) continue;
    refuse(output.option, output.path, output.companion,
           fmt::format("the same file as {}", input.option), "another file");
  }
  if (output.kind == OutputKind::kStream) return;
  constexpr const char* kStreams[] = {"standard input", "standard output", "standard error"};
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    struct stat stream = {};
    if (::fstat(descriptor, &stream) != 0 || !same_file(stream, *there)) continue;
    refuse(output.option, output.path, output.companion,
           fmt::format("the same file as {}", kStreams[descriptor]), "another file");
  }
}

void CommandFiles::check_others(const Output& output) const {
  const std::optional<struct stat> there = status_of(output.path);
  // Log lines and other text may share a terminal.
  if (there && !S_ISREG(there->st_mode)) return;
  for (const Output& other : outputs_) {
    if (&other == &output) return;
    const std::optional<struct stat> others = status_of(other.path);
    const bool same = there && others ? same_file(*there, *others)
                                      : place_of(output.path) == place_of(other.path);
    if (!same) continue;
    refuse(output.option, output.path, output.companion,
           other.companion ? fmt::format("a file that {} writes", other.option)
                           : fmt::format("the same file as {}", other.option),
           "another file");
  }
}

}  // namespace triphase
