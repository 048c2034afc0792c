// One rank's symmetric memory and its view of the peers': CUDA virtual memory whose physical part
// is passed between processes as a file descriptor. Physical memory lives until its last mapping
// goes, so ranks may destroy in any order and survive a peer's death.
#pragma once

#include <cstdint>
#include <vector>

#include "driver.hpp"
#include "memory.hpp"

namespace ep_runtime {

class SymmetricMemory : public Memory {
 public:
  // Allocates at least `bytes`, zeroed, on `device`.
  SymmetricMemory(int device, uint64_t bytes, int rank, int num_ranks);
  ~SymmetricMemory() override;
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  // A new file descriptor of the local memory; the caller closes it.
  int export_descriptor() const;
  // Maps a peer's memory from its descriptor, which stays the caller's.
  void import_descriptor(int peer, int descriptor);
  // Unmaps everything. Kernels that use it must have ended.
  void release();

  uint64_t bytes() const override { return bytes_; }
  // std::logic_error until the rank's memory is imported.
  uint8_t* address(int rank) const override;

 private:
  CUdeviceptr map(CUmemGenericAllocationHandle handle) const;

  int device_;
  int rank_;
  uint64_t bytes_;
  CUmemGenericAllocationHandle local_handle_ = 0;
  std::vector<CUdeviceptr> addresses_;
};

}  // namespace ep_runtime
