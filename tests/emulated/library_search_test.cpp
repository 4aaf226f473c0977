#include "kernels/cuda/library_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

namespace triphase::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LibrarySearchTest : public testing::Test {
 protected:
  LibrarySearchTest() {
    std::string name = testing::TempDir() + "library_search[1]_XXXXXX";  // brackets are no pattern
    root_ = ::mkdtemp(name.data());
  }
  ~LibrarySearchTest() override { std::filesystem::remove_all(root_); }

  std::string file(const std::string& path) {
    const std::filesystem::path full = root_ / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << "library";
    return full.string();
  }
  [[nodiscard]] LibrarySearch find() const {
    return find_cuda_library(
        "libx.so.13", 13, "TRIPHASE_X",
        [this](const std::string& name) {
          const auto found = environment_.find(name);
          return found == environment_.end() ? std::string() : found->second;
        },
        root_);
  }

  std::filesystem::path root_;
  std::map<std::string, std::string> environment_;
};

TEST_F(LibrarySearchTest, EveryInstallationIsFoundTheNamedOnesFirst) {
  const std::string system_wheel = file("usr/lib/python3/dist-packages/nvidia/cu13/lib/libx.so.13");
  const std::string local_wheel =
      file("usr/local/lib/python3.11/dist-packages/nvidia/cublas/lib/libx.so.13");
  const std::string site_wheel =
      file("usr/local/lib/python3.12/site-packages/nvidia/cu13/lib/libx.so.13");
  const std::string user_wheel =
      file("home/me/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.13");
  const std::string toolkit = file("usr/local/cuda/lib64/libx.so.13");
  const std::string older = file("usr/local/cuda-13.0/lib64/libx.so.13");
  const std::string conda = file("conda/lib/libx.so.13");
  const std::string wheel = file("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.13");
  const std::string home = file("opt/cuda/lib64/libx.so.13");
  // Of another major version: its calls are others.
  (void)file("usr/local/cuda-12.8/lib64/libx.so.12");
  (void)file("venv/lib/python3.11/site-packages/nvidia/cu12/lib/libx.so.13");
  EXPECT_THAT(find().files,
              ElementsAre("libx.so.13", toolkit, older, local_wheel, site_wheel, system_wheel));
  environment_ = {{"VIRTUAL_ENV", (root_ / "venv").string()},
                  {"CONDA_PREFIX", (root_ / "conda").string()},
                  {"CUDA_HOME", (root_ / "opt/cuda").string()},
                  {"HOME", (root_ / "home/me").string()}};
  EXPECT_THAT(find().files, ElementsAre("libx.so.13", home, wheel, conda, toolkit, older,
                                        user_wheel, local_wheel, site_wheel, system_wheel));
}

TEST_F(LibrarySearchTest, AFileThatIsNamedIsTheOnlyOne) {
  (void)file("usr/local/cuda/lib64/libx.so.13");
  environment_["TRIPHASE_X"] = "/mine/libx.so";
  EXPECT_THAT(find().files, ElementsAre("/mine/libx.so"));
}

TEST_F(LibrarySearchTest, ARefusalSaysWhatWasTried) {
  const std::string broken = file("usr/local/cuda/lib64/libx.so.13");
  environment_["CUDA_PATH"] = "/nowhere";
  EXPECT_THAT(search_refusal(find(), "libx.so.13", {"not found", "file too short"}),
              testing::AllOf(HasSubstr("tried libx.so.13 (not found); "),
                             HasSubstr(broken + " (file too short)"),
                             HasSubstr("looked for libx.so.13 in /nowhere/lib64 "),
                             HasSubstr("python3*/site-packages/nvidia/cu13/lib")));
  environment_["TRIPHASE_X"] = "/mine/libx.so";
  EXPECT_EQ(search_refusal(find(), "libx.so.13", {"no such file"}),
            "tried /mine/libx.so (no such file)");
}

}  // namespace
}  // namespace triphase::cuda
