#include "nvshmem_memory.hpp"

#include <cuda_runtime.h>

#include "driver.hpp"
#include "world.hpp"

namespace ep_runtime {

NvshmemMemory::NvshmemMemory(uint64_t address, uint64_t bytes, uint64_t mirror,
                             const std::vector<int>& queue_pairs, bool only_puts, bool break_order,
                             int rank, int num_ranks)
    : bytes_(bytes), addresses_(num_ranks, nullptr) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    if (peer == rank) {
      addresses_[peer] = reinterpret_cast<uint8_t*>(address);
    } else if (!only_puts) {
      addresses_[peer] = reinterpret_cast<uint8_t*>(world::mapped(address, peer));
    }
  }
  puts_.mirror = reinterpret_cast<uint8_t*>(mirror);
  puts_.break_order = break_order;
  if (queue_pairs.empty()) return;
  const size_t size = queue_pairs.size() * sizeof(int);
  void* handles = nullptr;
  check(cudaMalloc(&handles, size), "allocating queue-pair handles");
  queue_pairs_ = static_cast<int*>(handles);
  const cudaError_t status = cudaMemcpy(handles, queue_pairs.data(), size, cudaMemcpyHostToDevice);
  if (status != cudaSuccess) cudaFree(handles);
  check(status, "copying queue-pair handles");
  puts_.queue_pairs = queue_pairs_;
  puts_.num_queue_pairs = static_cast<int>(queue_pairs.size());
}

NvshmemMemory::~NvshmemMemory() { cudaFree(queue_pairs_); }

}  // namespace ep_runtime
