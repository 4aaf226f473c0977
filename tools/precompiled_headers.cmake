# Headers that most files include are compiled once, not once per source file. Files include what they
# use all the same: builds with sanitizers do without, and fail where one does not. Libraries share one
# such header and tests another: one for code that may lie anywhere, one for programs.
function(triphase_reuse_headers owner kinds folder)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(kind ${target} TYPE)
    if(kind IN_LIST kinds AND NOT target STREQUAL owner)
      target_precompile_headers(${target} REUSE_FROM ${owner})
    endif()
  endforeach()
  get_property(inner_folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(inner IN LISTS inner_folders)
    triphase_reuse_headers(${owner} "${kinds}" "${inner}")
  endforeach()
endfunction()

# In precompiled code of the standard library g++ 12 finds what is not there, and reports it.
foreach(warning array-bounds stringop-overread stringop-overflow)
  target_compile_options(triphase_flags INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-${warning}>")
endforeach()

set(TRIPHASE_COMMON_HEADERS
    <algorithm> <array> <chrono> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span>
    <string> <string_view> <unordered_map> <utility> <variant> <vector> <fmt/format.h>)
target_precompile_headers(triphase_base PRIVATE ${TRIPHASE_COMMON_HEADERS})
foreach(folder base scheduler kernels memory models runtime tools)
  triphase_reuse_headers(triphase_base "STATIC_LIBRARY;OBJECT_LIBRARY" "${CMAKE_SOURCE_DIR}/${folder}")
endforeach()
if(BUILD_TESTING)
  target_precompile_headers(base_test PRIVATE ${TRIPHASE_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
  file(GLOB folders "${CMAKE_SOURCE_DIR}/tests/unit/*/CMakeLists.txt")
  foreach(lists IN LISTS folders)
    get_filename_component(folder "${lists}" DIRECTORY)
    triphase_reuse_headers(base_test EXECUTABLE "${folder}")
  endforeach()
endif()
