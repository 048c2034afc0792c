#include "symmetric_memory.hpp"

#include <stdexcept>

namespace ep_runtime {

namespace {

CUmemAllocationProp allocation_properties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

SymmetricMemory::SymmetricMemory(int device, uint64_t bytes, int rank, int num_ranks)
    : device_(device), rank_(rank), addresses_(num_ranks, 0) {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaFree(nullptr), "starting CUDA");
  const Driver& driver = Driver::get();
  const CUmemAllocationProp properties = allocation_properties(device);
  size_t granularity = 0;
  driver.check(
      driver.mem_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  bytes_ = (bytes + granularity - 1) / granularity * granularity;
  driver.check(driver.mem_create(&local_handle_, bytes_, &properties, 0),
               "allocating " + std::to_string(bytes_) + " bytes of symmetric memory on GPU " +
                   std::to_string(device));
  try {
    addresses_[rank_] = map(local_handle_);
    check(cudaMemset(reinterpret_cast<void*>(addresses_[rank_]), 0, bytes_),
          "zeroing symmetric memory");
    check(cudaDeviceSynchronize(), "zeroing symmetric memory");
  } catch (...) {
    release();
    throw;
  }
}

SymmetricMemory::~SymmetricMemory() { release(); }

CUdeviceptr SymmetricMemory::map(CUmemGenericAllocationHandle handle) const {
  const Driver& driver = Driver::get();
  CUdeviceptr address = 0;
  driver.check(driver.mem_address_reserve(&address, bytes_, 0, 0, 0), "cuMemAddressReserve");
  CUresult status = driver.mem_map(address, bytes_, 0, handle, 0);
  if (status == CUDA_SUCCESS) {
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = driver.mem_set_access(address, bytes_, &access, 1);
    if (status != CUDA_SUCCESS) driver.mem_unmap(address, bytes_);
  }
  if (status != CUDA_SUCCESS) driver.mem_address_free(address, bytes_);
  driver.check(status, "mapping symmetric memory on GPU " + std::to_string(device_) +
                           " (do the GPUs reach each other?)");
  return address;
}

int SymmetricMemory::export_descriptor() const {
  const Driver& driver = Driver::get();
  int descriptor = -1;
  driver.check(
      driver.mem_export(&descriptor, local_handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return descriptor;
}

void SymmetricMemory::import_descriptor(int peer, int descriptor) {
  check(cudaSetDevice(device_), "cudaSetDevice");
  if (addresses_.at(peer) != 0) throw std::logic_error("this peer is mapped already");
  const Driver& driver = Driver::get();
  CUmemGenericAllocationHandle handle = 0;
  driver.check(
      driver.mem_import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing the symmetric memory of rank " + std::to_string(peer));
  try {
    addresses_[peer] = map(handle);
  } catch (...) {
    driver.mem_release(handle);
    throw;
  }
  // The mapping holds the memory from here on.
  driver.check(driver.mem_release(handle), "cuMemRelease");
}

uint8_t* SymmetricMemory::address(int rank) const {
  if (addresses_.at(rank) == 0) {
    throw std::logic_error("the memory of rank " + std::to_string(rank) + " is not imported");
  }
  return reinterpret_cast<uint8_t*>(addresses_[rank]);
}

void SymmetricMemory::release() {
  // Runs in destructors and after faults: nothing to do about a failure here but go on.
  const Driver& driver = Driver::get();
  for (CUdeviceptr& address : addresses_) {
    if (address == 0) continue;
    driver.mem_unmap(address, bytes_);
    driver.mem_address_free(address, bytes_);
    address = 0;
  }
  if (local_handle_ != 0) driver.mem_release(local_handle_);
  local_handle_ = 0;
}

}  // namespace ep_runtime
