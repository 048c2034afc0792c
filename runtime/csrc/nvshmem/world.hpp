// NVSHMEM in this process: one world, of whose memory every Buffer gets blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ep_runtime::world {

struct Version {
  int major;
  int minor;
  int patch;
};

// Of the headers and device code in this module, and of the library that is loaded.
Version compiled_version();
Version loaded_version();

// Made by rank 0; every rank needs it to join. Both throw std::runtime_error with NVSHMEM's status.
std::string unique_id();
void join(const std::string& unique_id, int rank, int num_ranks, int device);

// Collective: symmetric memory, zeroed, at an address of this process; 0 when there is none left.
uint64_t allocate(uint64_t bytes);
void zero(uint64_t address, uint64_t bytes);
// Collective.
void free(uint64_t address);

// Where the rank's copy of the memory at `address` is mapped here, or 0.
uint64_t mapped(uint64_t address, int rank);

// Collective. Handles of `count` queue pairs to each rank; none where this version or the transport
// has no explicit ones.
std::vector<int> create_queue_pairs(int count);

}  // namespace ep_runtime::world
