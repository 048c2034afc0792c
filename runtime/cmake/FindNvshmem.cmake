# Sets EP_RUNTIME_WITH_NVSHMEM, EP_RUNTIME_NVSHMEM_DIR (the prefix with include/ and lib/) and
# EP_RUNTIME_NVSHMEM_VERSION (such as 3.4.5; empty without it).
# EP_RUNTIME_NVSHMEM: AUTO (where found), ON or OFF. Looked for in EP_RUNTIME_NVSHMEM_DIR, then
# NVSHMEM_DIR and NVSHMEM_HOME of the environment, then the nvidia-nvshmem wheel of the Python that
# builds.
if(NOT "$ENV{EP_RUNTIME_NVSHMEM}" STREQUAL "")
  set(_nvshmem_default "$ENV{EP_RUNTIME_NVSHMEM}")
else()
  set(_nvshmem_default AUTO)
endif()
set(EP_RUNTIME_NVSHMEM "${_nvshmem_default}" CACHE STRING
    "Build the kernels over NVSHMEM: AUTO, ON or OFF")
string(TOUPPER "${EP_RUNTIME_NVSHMEM}" EP_RUNTIME_NVSHMEM_MODE)
if(NOT EP_RUNTIME_NVSHMEM_MODE MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "EP_RUNTIME_NVSHMEM must be AUTO, ON or OFF, got '${EP_RUNTIME_NVSHMEM}'.")
endif()

set(EP_RUNTIME_WITH_NVSHMEM OFF)
if(NOT EP_RUNTIME_NVSHMEM_MODE STREQUAL "OFF" AND EP_RUNTIME_WITH_CUDA)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('nvidia'); print(*(p + '/nvshmem' for p in s.submodule_search_locations or []) if s else (), sep=';')"
    OUTPUT_VARIABLE _nvshmem_wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(_prefix IN ITEMS
          "${EP_RUNTIME_NVSHMEM_DIR}" "$ENV{NVSHMEM_DIR}" "$ENV{NVSHMEM_HOME}" ${_nvshmem_wheels})
    if(_prefix AND EXISTS "${_prefix}/include/nvshmemx.h"
       AND EXISTS "${_prefix}/lib/libnvshmem_device.a"
       AND EXISTS "${_prefix}/lib/libnvshmem_host.so.3")
      set(EP_RUNTIME_NVSHMEM_DIR "${_prefix}" CACHE PATH "Prefix of NVSHMEM" FORCE)
      set(EP_RUNTIME_WITH_NVSHMEM ON)
      break()
    endif()
  endforeach()
endif()
if(EP_RUNTIME_NVSHMEM_MODE STREQUAL "ON" AND NOT EP_RUNTIME_WITH_NVSHMEM)
  message(FATAL_ERROR
    "EP_RUNTIME_NVSHMEM=ON, but no NVSHMEM (include/nvshmemx.h, lib/libnvshmem_device.a, "
    "lib/libnvshmem_host.so.3) was found, or no nvcc: set EP_RUNTIME_NVSHMEM_DIR or NVSHMEM_DIR, or "
    "install nvidia-nvshmem-cu12 or -cu13 for the Python that builds.")
endif()

set(EP_RUNTIME_NVSHMEM_VERSION "")
if(EP_RUNTIME_WITH_NVSHMEM)
  set(_numbers "")
  foreach(_part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS "${EP_RUNTIME_NVSHMEM_DIR}/include/non_abi/nvshmem_version.h" _line
         REGEX "^#define NVSHMEM_VENDOR_${_part}_VERSION ")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" _number "${_line}")
    list(APPEND _numbers "${_number}")
  endforeach()
  list(JOIN _numbers "." EP_RUNTIME_NVSHMEM_VERSION)
endif()
message(STATUS "ep_runtime: NVSHMEM ${EP_RUNTIME_NVSHMEM_VERSION} ${EP_RUNTIME_WITH_NVSHMEM} "
               "(asked ${EP_RUNTIME_NVSHMEM_MODE}, ${EP_RUNTIME_NVSHMEM_DIR})")
