# Two builds of the same source give the same bytes, wherever they are made.

include(CheckCXXCompilerFlag)

# Paths of the build end up in messages and in names: write these directories as the source's root.
function(ep_runtime_map_paths)
  foreach(_directory ${ARGN})
    set(_flag "-ffile-prefix-map=${_directory}=.")
    check_cxx_compiler_flag("${_flag}" EP_RUNTIME_HAS_PREFIX_MAP)
    if(EP_RUNTIME_HAS_PREFIX_MAP)
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${_flag}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${_flag}>)
    endif()
  endforeach()
endfunction()

# nvcc names what is in anonymous namespaces after the absolute path of the file. Its front ends take
# another path; where they don't, builds in the same directory are still alike.
function(ep_runtime_name_kernels_by_file target)
  set(_probe ${CMAKE_CURRENT_BINARY_DIR}/probe.cu)
  file(WRITE ${_probe} "namespace { __global__ void kernel() {} }\nvoid launch() { kernel<<<1, 1>>>(); }\n")
  if(NOT DEFINED EP_RUNTIME_HAS_SOURCE_NAME)
    execute_process(
      COMMAND ${CMAKE_CUDA_COMPILER} -frandom-seed=probe.cu -Xcudafe=--orig_src_path_name,probe.cu
              -Xcicc=--orig_src_path_name,probe.cu -c ${_probe} -o ${_probe}.o
      RESULT_VARIABLE _result OUTPUT_QUIET ERROR_QUIET)
    if(_result EQUAL 0)
      set(EP_RUNTIME_HAS_SOURCE_NAME ON CACHE INTERNAL "")
    else()
      set(EP_RUNTIME_HAS_SOURCE_NAME OFF CACHE INTERNAL "")
    endif()
  endif()
  if(NOT EP_RUNTIME_HAS_SOURCE_NAME)
    message(STATUS "ep_runtime: this nvcc names kernels after the directory they are built in")
    return()
  endif()
  get_target_property(_sources ${target} SOURCES)
  list(FILTER _sources INCLUDE REGEX "\\.cu$")
  foreach(_source ${_sources})
    get_filename_component(_name ${_source} NAME)
    set_property(SOURCE ${_source} APPEND PROPERTY COMPILE_OPTIONS
      -frandom-seed=${_name}
      -Xcudafe=--orig_src_path_name,${_name}
      -Xcicc=--orig_src_path_name,${_name})
  endforeach()
endfunction()
