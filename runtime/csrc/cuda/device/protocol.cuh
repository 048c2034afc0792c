// Epochs, slots, acknowledgements: the small shared vocabulary of all phases.
//
// Operation n of a kind (dispatch or combine) is epoch n = 1, 2, ...; it uses slot n & 1. A
// sender may overwrite a slot of a peer only after the peer has read the previous operation of
// that slot; the peer says so by an acknowledgement word that every launch posts at its start.
// runtime/tests/protocol explores all interleavings of this, in the same words.
#pragma once

#include "../context.hpp"
#include "memory.cuh"
#include "put.cuh"
#include "wait.cuh"

namespace ep_runtime {

enum class Kind : int { kDispatch = 0, kCombine = 1 };

struct Timing {
  uint64_t start_ns;
  uint64_t deadline_ns;
};

__device__ __forceinline__ Timing starting_now(uint64_t timeout_ns) {
  const uint64_t now = global_nanoseconds();
  return {now, now + timeout_ns};
}

// What all threads of a block know about their launch.
struct LaunchShared {
  uint64_t epoch;
  Timing timing;
  uint64_t acks[kInlinePeers];  // as read at the start; a wait goes on from there
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

// This block's share of the launch's kTicket. Relaxed order is enough wherever tickets are added:
// a block adds its own after it has used what it read, and the sum counts for later launches.
__device__ __forceinline__ uint64_t ticket_share() {
  return blockIdx.x == 0 ? kTicket - (gridDim.x - 1) : 1;
}

// Different threads fetch what every phase needs, so that the trips to memory overlap; the caller
// synchronises the block. Not the first warps, which have first of all else there is to load.
constexpr int kLaunchThread = 8 * 32;
__device__ __forceinline__ void begin_launch(const DeviceContext& context,
                                             const LowLatencyLayout& layout, int phases,
                                             uint64_t* sends, uint64_t* op_epoch,
                                             uint64_t timeout_ns, LaunchShared& shared) {
  const int thread = static_cast<int>(threadIdx.x) - kLaunchThread;
  if (thread == 0) {
    if (phases & kSend) {
      shared.epoch = load_relaxed_gpu(sends) / kTicket + 1;
      add_relaxed_gpu(sends, ticket_share());
      if (blockIdx.x == 0) *op_epoch = shared.epoch;
    } else {
      shared.epoch = *op_epoch;
    }
  } else if (thread == 32) {
    shared.timing = starting_now(timeout_ns);
  } else if (thread >= 64 && thread < 64 + kInlinePeers && thread - 64 < context.num_ranks) {
    shared.acks[thread - 64] =
        load_acquire_system(word_at(context.local, layout.ack_at(thread - 64)));
  }
}

// Receives completed, 16 bits for each kind and slot.
__device__ __forceinline__ uint64_t completed_receives(const Counters& counters) {
  const uint64_t* words[4] = {&counters.dispatch_receives[0], &counters.dispatch_receives[1],
                              &counters.combine_receives[0], &counters.combine_receives[1]};
  uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed |= (load_relaxed_gpu(words[i]) / kTicket & 0xffffull) << (16 * i);
  }
  return packed;
}

// One warp tells every peer which of our slots have been read, as completed_receives said when the
// launch began. Posted by every launch, changed or not, because a caller may recover from a fault
// by zero-filling symmetric memory.
__device__ inline void post_acknowledgements(const DeviceContext& context,
                                             const LowLatencyLayout& layout, uint64_t completed) {
  const uint64_t offset = layout.ack_at(context.rank);
  __threadfence_system();  // one fence orders the stores to all peers
#pragma unroll 1
  for (int peer = threadIdx.x % 32; peer < context.num_ranks; peer += 32) {
    if constexpr (kMayPut) {
      if (only_by_put(context, peer)) {
        if (!is_masked(context, peer)) put_word(context, peer, offset, completed);
        continue;
      }
    }
    store_relaxed_system(word_at(peer_base(context, peer), offset), completed);
  }
  // State: posted.
}

// Whether the peer has read everything that used the slot of `epoch` before.
__device__ __forceinline__ bool acknowledged(uint64_t word, Kind kind, uint64_t epoch) {
  const int shift = 16 * (2 * static_cast<int>(kind) + slot_of(epoch));
  const uint32_t ahead = static_cast<uint32_t>(word >> shift) - earlier_in_slot(epoch);
  return static_cast<int16_t>(ahead) >= 0;
}

__device__ __noinline__ inline bool wait_acknowledged(const DeviceContext& context,
                                                      const LowLatencyLayout& layout,
                                                      const LaunchShared& launch, Kind kind,
                                                      int peer, Phase phase) {
  const uint64_t epoch = launch.epoch;
  uint64_t word;
  return wait_word(context, word_at(context.local, layout.ack_at(peer)), launch.timing.start_ns,
                   launch.timing.deadline_ns, WaitSite{phase, peer, -1, -1}, word,
                   [=](uint64_t value) { return acknowledged(value, kind, epoch); });
}

// Waits until `peer` has read what we sent it two operations ago. It has, as a rule: the wait
// itself stays out of the code that runs.
__device__ __forceinline__ bool wait_slot_free(const DeviceContext& context,
                                               const LowLatencyLayout& layout,
                                               const LaunchShared& launch, Kind kind, int peer,
                                               Phase phase) {
  if (peer < kInlinePeers && acknowledged(launch.acks[peer], kind, launch.epoch)) return true;
  return wait_acknowledged(context, layout, launch, kind, peer, phase);
}

}  // namespace ep_runtime
