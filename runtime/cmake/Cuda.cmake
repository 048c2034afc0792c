# The CUDA compiler that was found, and the GPU architectures to compile for.
set(CMAKE_CUDA_COMPILER ${EP_RUNTIME_NVCC})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
ep_runtime_map_paths(${CUDAToolkit_INCLUDE_DIRS})

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

# What every module with kernels has in common. Called in the folder of its sources.
function(ep_runtime_finish_kernels target)
  set_target_properties(${target} PROPERTIES
    CUDA_STANDARD 17
    CUDA_STANDARD_REQUIRED ON
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden
    CUDA_ARCHITECTURES "${EP_RUNTIME_CUDA_ARCHITECTURES}"
    INTERPROCEDURAL_OPTIMIZATION OFF)
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${EP_RUNTIME_TORCH_DIR})
  string(REPLACE ";" " " _named "${EP_RUNTIME_CUDA_ARCHITECTURES}")
  target_compile_definitions(${target} PRIVATE EP_RUNTIME_CUDA_ARCHITECTURES="${_named}")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  ep_runtime_name_kernels_by_file(${target})
  install(TARGETS ${target} DESTINATION ep_runtime)
endfunction()
