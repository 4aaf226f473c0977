#include "kernels/cuda/library_search.h"

#include <glob.h>

namespace triphase::cuda {
namespace {

std::string escaped(std::string_view path) {
  std::string pattern;
  for (const char letter : path) {
    if (std::string_view("*?[]\\").find(letter) != std::string_view::npos) pattern += '\\';
    pattern += letter;
  }
  return pattern;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return files;
}

// Patterns of folders, the best first.
std::vector<std::string> folders_of(int cuda_major,
                                    const std::function<std::string(const std::string&)>& variable,
                                    const std::string& root) {
  std::vector<std::string> folders;
  const auto add_packages = [&](const std::string& packages) {
    folders.push_back(packages + "/nvidia/cu" + std::to_string(cuda_major) + "/lib");
    folders.push_back(packages + "/nvidia/cublas/lib");  // as wheels of CUDA 12 have it
  };
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string toolkit = variable(name);
    if (!toolkit.empty()) folders.push_back(escaped(toolkit) + "/lib64");
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = variable(name);
    if (prefix.empty()) continue;
    add_packages(escaped(prefix) + "/lib/python3*/site-packages");
    folders.push_back(escaped(prefix) + "/lib");
  }
  folders.push_back(root + "/usr/local/cuda/lib64");
  folders.push_back(root + "/usr/local/cuda-*/lib64");
  const std::string home = variable("HOME");
  if (!home.empty()) add_packages(escaped(home) + "/.local/lib/python3*/site-packages");
  add_packages(root + "/usr/local/lib/python3*/dist-packages");
  add_packages(root + "/usr/local/lib/python3*/site-packages");
  add_packages(root + "/usr/lib/python3/dist-packages");
  return folders;
}

}  // namespace

LibrarySearch find_cuda_library(const std::string& file, int cuda_major,
                                const std::string& own_variable,
                                const std::function<std::string(const std::string&)>& variable,
                                const std::filesystem::path& root) {
  const std::string named = variable(own_variable);
  if (!named.empty()) return {{named}, {}};
  LibrarySearch search{{file}, {}};
  const std::string prefix = root == "/" ? "" : escaped(root.string());
  for (const std::string& folder : folders_of(cuda_major, variable, prefix)) {
    search.folders.push_back(folder);
    for (std::string& found : matches(folder + "/" + file)) {
      search.files.push_back(std::move(found));
    }
  }
  return search;
}

std::string search_refusal(const LibrarySearch& search, std::string_view file,
                           const std::vector<std::string>& reasons) {
  std::string text = "tried ";
  for (std::size_t i = 0; i < search.files.size(); ++i) {
    if (i > 0) text += "; ";
    text += search.files[i];
    if (i < reasons.size()) text += " (" + reasons[i] + ")";
  }
  if (search.folders.empty()) return text;
  text += "; looked for ";
  text += file;
  text += " in";
  for (const std::string& folder : search.folders) text += " " + folder;
  return text;
}

}  // namespace triphase::cuda
