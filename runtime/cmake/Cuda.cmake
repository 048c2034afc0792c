# The CUDA compiler that was found, and the GPU architectures to compile for.
set(CMAKE_CUDA_COMPILER ${EP_RUNTIME_NVCC})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Real code for what exists, and PTX of the newest for what comes next.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  set(_architectures "80-real;90-real;100-real;120")
elseif(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 11.8)
  set(_architectures "80-real;90")
else()
  set(_architectures "80")
endif()
set(EP_RUNTIME_CUDA_ARCHITECTURES "${_architectures}" CACHE STRING
    "GPU architectures to compile for, as CMake's CUDA_ARCHITECTURES")
