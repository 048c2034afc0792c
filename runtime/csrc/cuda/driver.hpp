// The few driver calls that CUDA virtual memory needs, found at run time: nothing here links
// libcuda, so the module imports on a machine without a GPU driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>

namespace ep_runtime {

void check(cudaError_t status, const char* what);

struct Driver {
  decltype(&cuMemCreate) mem_create;
  decltype(&cuMemRelease) mem_release;
  decltype(&cuMemAddressReserve) mem_address_reserve;
  decltype(&cuMemAddressFree) mem_address_free;
  decltype(&cuMemMap) mem_map;
  decltype(&cuMemUnmap) mem_unmap;
  decltype(&cuMemSetAccess) mem_set_access;
  decltype(&cuMemExportToShareableHandle) mem_export;
  decltype(&cuMemImportFromShareableHandle) mem_import;
  decltype(&cuMemGetAllocationGranularity) mem_granularity;
  decltype(&cuGetErrorString) error_string;

  static const Driver& get();
  void check(CUresult status, const std::string& what) const;
};

}  // namespace ep_runtime
