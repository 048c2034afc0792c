// Peers whose memory is not mapped here are reached by puts: rows are built in a mirror of
// symmetric memory on this GPU, and the transport carries them from there, the flag behind the
// data. Which peers those are is known at run time; a build without a transport has none, and all
// code for them falls away.
#pragma once

#include "../context.hpp"

namespace ep_runtime {

#if defined(EP_RUNTIME_NVSHMEM)
constexpr bool kMayPut = true;
#else
constexpr bool kMayPut = false;
#endif

// Where plain stores reach the rank's symmetric memory, or null.
__device__ __forceinline__ uint8_t* peer_base(const DeviceContext& context, int rank) {
  return context.num_ranks <= kInlinePeers ? context.inline_peers[rank] : context.peers[rank];
}

__device__ __forceinline__ bool only_by_put(const DeviceContext& context, int rank) {
  return kMayPut && peer_base(context, rank) == nullptr;
}

// What one warp puts: `bytes` (a multiple of 8) from the mirror to `offset` on the rank, then
// `epoch` to the word at `flag_offset`, never seen before the data.
struct RowPut {
  const uint8_t* source;
  uint64_t offset;
  uint64_t flag_offset;
  uint64_t bytes;
  int rank;
  int local_expert;  // of the rank that holds the expert; chooses the queue pair
};

// Defined by the transport (csrc/nvshmem/put.cu). The memory at `source` may be written again once
// the receiver has acknowledged the row, or after drain_puts().
__device__ void put_row(const DeviceContext& context, const RowPut& row, uint64_t epoch);

// All lanes of a warp: `bytes` from the mirror at `source`, words that carry their own epoch.
__device__ void put_words(const DeviceContext& context, int rank, uint64_t offset,
                          const uint8_t* source, uint64_t bytes);

// One thread: one word that carries its own epoch.
__device__ void put_word(const DeviceContext& context, int rank, uint64_t offset, uint64_t value);

// One thread: returns when everything put from this GPU has arrived.
__device__ void drain_puts();

}  // namespace ep_runtime
