# Included by the top CMakeLists under TRIPHASE_PORTABLE: `cmake --install` then makes one folder with
# the programs, the tests, and every shared library they need beside them, found by RPATH $ORIGIN.
# Only glibc's own libraries stay the target machine's (glibc 2.36 or newer).

function(triphase_all_executables folder result)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  set(found "")
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(excluded ${target} EXCLUDE_FROM_ALL)
    if(type STREQUAL "EXECUTABLE" AND NOT excluded)
      list(APPEND found ${target})
    endif()
  endforeach()
  foreach(child IN LISTS folders)
    triphase_all_executables("${child}" deeper)
    list(APPEND found ${deeper})
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

triphase_all_executables("${CMAKE_SOURCE_DIR}" executables)
if(TRIPHASE_GPU_KIT)
  # Only what needs a GPU: the emulated tests say the same wherever they run.
  get_property(gpu_tests GLOBAL PROPERTY TRIPHASE_GPU_TESTS)
  list(FILTER gpu_tests INCLUDE REGEX "^gpu:")
  list(TRANSFORM gpu_tests REPLACE "^gpu:" "")
  set(executables triphase ${gpu_tests})
endif()
set_target_properties(${executables} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${executables} RUNTIME DESTINATION bin)
if(BUILD_TESTING)
  install(FILES "${CMAKE_BINARY_DIR}/bin/gpu_tests.txt" DESTINATION bin)
endif()
install(PROGRAMS tools/gpu_acceptance DESTINATION .)
install(PROGRAMS bench/vs_torch.py bench/alisa_grid.py DESTINATION bench)
# The shipped models that its jobs are compared with the CPU on are found in the checkout around a kit.
install(PROGRAMS tests/e2e/gpu_jobs_test.py tests/e2e/gpu_matrix.py tests/e2e/gpu_jobs.py DESTINATION share/triphase/tests/e2e)
if(NOT TRIPHASE_GPU_KIT)
  install(DIRECTORY tests/fixtures DESTINATION share/triphase/tests)
  install(DIRECTORY models/shipped DESTINATION share/triphase/models)
endif()
install(CODE [[
  file(GLOB programs "${CMAKE_INSTALL_PREFIX}/bin/*")
  list(FILTER programs EXCLUDE REGEX "\\.(so|txt)")
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} RESOLVED_DEPENDENCIES_VAR found
       UNRESOLVED_DEPENDENCIES_VAR missing
       PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|pthread|dl|rt)\\.so")
  if(missing)
    message(FATAL_ERROR "shared libraries not found: ${missing}")
  endif()
  foreach(library IN LISTS found)
    get_filename_component(real "${library}" REALPATH)
    get_filename_component(name "${library}" NAME)
    file(COPY_FILE "${real}" "${CMAKE_INSTALL_PREFIX}/bin/${name}")
    # A library's own needs must be found beside it too.
    execute_process(COMMAND patchelf --set-rpath "$ORIGIN" "${CMAKE_INSTALL_PREFIX}/bin/${name}"
                    RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "patchelf failed for ${name}")
    endif()
  endforeach()
]])
