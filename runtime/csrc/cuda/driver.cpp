#include "driver.hpp"

#include <stdexcept>

namespace ep_runtime {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " +
                           cudaGetErrorString(status));
}

namespace {

template <typename Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found), name);
#else
  check(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found), name);
#endif
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    throw std::runtime_error(std::string("the CUDA driver has no ") + name +
                             "; a driver for CUDA 12.0 or newer is needed");
  }
  function = reinterpret_cast<Function>(address);
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = [] {
    Driver d;
    find(d.mem_create, "cuMemCreate");
    find(d.mem_release, "cuMemRelease");
    find(d.mem_address_reserve, "cuMemAddressReserve");
    find(d.mem_address_free, "cuMemAddressFree");
    find(d.mem_map, "cuMemMap");
    find(d.mem_unmap, "cuMemUnmap");
    find(d.mem_set_access, "cuMemSetAccess");
    find(d.mem_export, "cuMemExportToShareableHandle");
    find(d.mem_import, "cuMemImportFromShareableHandle");
    find(d.mem_granularity, "cuMemGetAllocationGranularity");
    find(d.error_string, "cuGetErrorString");
    return d;
  }();
  return driver;
}

void Driver::check(CUresult status, const std::string& what) const {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  error_string(status, &text);
  throw std::runtime_error(what + ": " + (text != nullptr ? text : "unknown CUDA driver error"));
}

}  // namespace ep_runtime
