// Epochs, slots, acknowledgements: the small shared vocabulary of all phases.
//
// Operation n of a kind (dispatch or combine) is epoch n = 1, 2, ...; it uses slot n & 1. A
// sender may overwrite a slot of a peer only after the peer has read the previous operation of
// that slot; the peer says so by acknowledgement words that every launch posts at its start.
#pragma once

#include "../context.hpp"
#include "memory.cuh"
#include "wait.cuh"

namespace ep_runtime {

constexpr int kSend = 1;
constexpr int kReceive = 2;

struct Timing {
  uint64_t start_ns;
  uint64_t deadline_ns;
};

__device__ __forceinline__ int slot_of(uint64_t epoch) { return static_cast<int>(epoch & 1); }

// Operations that used the slot of `epoch` before it.
__device__ __forceinline__ uint32_t earlier_in_slot(uint64_t epoch) {
  return static_cast<uint32_t>((epoch - 1) >> 1);
}

// A count and its epoch in one word. Never zero, so zeroed memory means "nothing has arrived".
__device__ __forceinline__ uint64_t tagged(uint64_t epoch, uint32_t value) {
  return (((epoch & 0x7fffffffull) | 0x80000000ull) << 32) | value;
}

__device__ __forceinline__ bool has_tag(uint64_t word, uint64_t epoch) {
  return (word >> 32) == ((epoch & 0x7fffffffull) | 0x80000000ull);
}

__device__ __forceinline__ uint64_t* word_at(uint8_t* base, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(base + offset);
}

// This block's share of the launch's kTicket.
__device__ __forceinline__ uint64_t ticket_share() {
  return blockIdx.x == 0 ? kTicket - (gridDim.x - 1) : 1;
}

__device__ __forceinline__ uint64_t next_epoch(const uint64_t* sends) {
  return load_acquire_gpu(sends) / kTicket + 1;
}

__device__ __forceinline__ uint64_t completed_receives(const uint64_t (&receives)[kSlots]) {
  const uint64_t even = load_acquire_gpu(&receives[0]) / kTicket;
  const uint64_t odd = load_acquire_gpu(&receives[1]) / kTicket;
  return (odd << 32) | (even & 0xffffffffull);
}

// One warp tells every peer which of our slots have been read. Posted by every launch, changed or
// not, because a caller may recover from a fault by zero-filling symmetric memory.
__device__ inline void post_acknowledgements(const DeviceContext& context,
                                             const LowLatencyLayout& layout) {
  const uint64_t dispatch = completed_receives(context.counters->dispatch_receives);
  const uint64_t combine = completed_receives(context.counters->combine_receives);
  __threadfence_system();  // one fence orders the stores to all peers
  for (int peer = threadIdx.x % 32; peer < context.num_ranks; peer += 32) {
    uint8_t* base = context.peers[peer];
    store_relaxed_system(word_at(base, layout.dispatch_ack_at(context.rank)), dispatch);
    store_relaxed_system(word_at(base, layout.combine_ack_at(context.rank)), combine);
  }
}

// Waits until `peer` has read what we sent it two operations ago; `ack` is its word here.
__device__ __forceinline__ bool wait_slot_free(const DeviceContext& context, const uint64_t* ack,
                                               int peer, uint64_t epoch, const Timing& timing,
                                               Phase phase) {
  const int shift = slot_of(epoch) * 32;
  const uint32_t needed = earlier_in_slot(epoch);
  uint64_t word;
  return wait_word(context, ack, timing.start_ns, timing.deadline_ns, WaitSite{phase, peer, -1, -1},
                   word, [=](uint64_t value) {
                     return static_cast<int32_t>(static_cast<uint32_t>(value >> shift) - needed) >=
                            0;
                   });
}

}  // namespace ep_runtime
