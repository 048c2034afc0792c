// A block of NVSHMEM's symmetric memory as the engine sees it. The block is the caller's: it
// outlives the engine and may serve the next one.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"

namespace ep_runtime {

class NvshmemMemory : public Memory {
 public:
  // `mirror`: a block of the same size, or 0 where every rank is mapped. With `only_puts` no other
  // rank counts as mapped.
  NvshmemMemory(uint64_t address, uint64_t bytes, uint64_t mirror,
                const std::vector<int>& queue_pairs, bool only_puts, bool break_order, int rank,
                int num_ranks);
  ~NvshmemMemory() override;
  NvshmemMemory(const NvshmemMemory&) = delete;
  NvshmemMemory& operator=(const NvshmemMemory&) = delete;

  uint64_t bytes() const override { return bytes_; }
  uint8_t* address(int rank) const override { return addresses_.at(rank); }
  Puts puts() const override { return puts_; }

 private:
  uint64_t bytes_;
  std::vector<uint8_t*> addresses_;
  Puts puts_ = {};
  int* queue_pairs_ = nullptr;  // device memory
};

}  // namespace ep_runtime
