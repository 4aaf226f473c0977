#include "runtime/build_info.h"

#include "build_commit.h"  // written by runtime/write_build_commit.cmake at every build

#define TRIPHASE_TEXT2(value) #value
#define TRIPHASE_TEXT(value) TRIPHASE_TEXT2(value)

namespace triphase {

std::string_view program_version() { return TRIPHASE_VERSION; }
std::string_view build_commit() { return TRIPHASE_BUILD_COMMIT; }
std::string_view build_type() { return TRIPHASE_BUILD_TYPE; }

std::string_view compiler() {
#if defined(__clang__)
  return "clang++ " TRIPHASE_TEXT(__clang_major__) "." TRIPHASE_TEXT(
      __clang_minor__) "." TRIPHASE_TEXT(__clang_patchlevel__);
#else
  return "g++ " TRIPHASE_TEXT(__GNUC__) "." TRIPHASE_TEXT(__GNUC_MINOR__) "." TRIPHASE_TEXT(
      __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace triphase
