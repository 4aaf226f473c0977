#pragma once

// Where a library of the CUDA toolkit may lie on a machine: a toolkit, a conda environment, or the
// packages that pip installs.

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace triphase::cuda {

struct LibrarySearch {
  std::vector<std::string> files;    // for dlopen, in this order
  std::vector<std::string> folders;  // that were looked into for them, with wildcards
};

// `variable` is the environment: empty for one that is not set. A file named by `own_variable` is
// the only one; else the linker's own search comes first, then files that exist: of the toolkit or
// environment that a variable names, of toolkits under /usr/local, of the user's and the system's
// Python packages. `root` stands for / (tests).
[[nodiscard]] LibrarySearch find_cuda_library(
    const std::string& file, int cuda_major, const std::string& own_variable,
    const std::function<std::string(const std::string&)>& variable,
    const std::filesystem::path& root = "/");

// What was tried and why it failed; `reasons` stand beside `search.files`.
[[nodiscard]] std::string search_refusal(const LibrarySearch& search, std::string_view file,
                                         const std::vector<std::string>& reasons);

}  // namespace triphase::cuda
