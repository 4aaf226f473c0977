# The CUDA language, when asked for: compiler, architectures, launcher.
option(TRIPHASE_CUDA "Build the CUDA backend (needs the CUDA toolkit, 12 or newer; no GPU)" OFF)
# sm_80 also as PTX, which any newer GPU can take; sm_75, 86, 89, 100 on request.
set(TRIPHASE_CUDA_ARCHS "80;90a-real" CACHE STRING "GPU architectures, as in CMAKE_CUDA_ARCHITECTURES")

if(TRIPHASE_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(TRIPHASE_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
    if(NOT TRIPHASE_NVCC)
      message(FATAL_ERROR "TRIPHASE_CUDA is ON, but no nvcc was found in PATH, CUDA_HOME or /usr/local/cuda")
    endif()
    set(CMAKE_CUDA_COMPILER "${TRIPHASE_NVCC}" CACHE FILEPATH "CUDA compiler")
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(CMAKE_CUDA_ARCHITECTURES "${TRIPHASE_CUDA_ARCHS}")
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's C++20 flag.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit 12 REQUIRED)
  # The launcher keeps what ptxas -v says beside each object (tools/check_kernel_budget.py).
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${Python3_EXECUTABLE};${CMAKE_SOURCE_DIR}/tools/capture_ptxas.py")
  if(CCACHE)
    list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
  endif()
endif()
