// Bounded waits: every wait of the protocol ends by arrival, by a mask, or at the deadline.
#pragma once

#include "../context.hpp"
#include "memory.cuh"

namespace ep_runtime {

// What one wait was for, so that its expiry can be explained.
struct WaitSite {
  Phase phase;
  int peer;
  int expert;  // global expert, or -1
  int token;   // token or row, or -1
};

__device__ __forceinline__ bool is_masked(const DeviceContext& context, int rank) {
  return context.enable_shrink && *reinterpret_cast<const volatile int*>(context.mask + rank) != 0;
}

// Keeps the first problem only: later ones are most often its consequences.
__device__ __noinline__ inline void record_problem(const DeviceContext& context, Problem problem,
                                                   const WaitSite& site, uint64_t waited_ns) {
  ProblemRecord* record = context.problem;
  if (atomicCAS_system(&record->state, 0u, 1u) != 0u) return;
  record->problem = static_cast<int>(problem);
  record->phase = static_cast<int>(site.phase);
  record->peer = site.peer;
  record->expert = site.expert;
  record->token = site.token;
  record->waited_us = waited_ns / 1000;
  __threadfence_system();
  atomicExch_system(&record->state, 2u);
}

// On expiry the peer is masked where shrinking is allowed; otherwise the problem is recorded
// for the host. Either way the caller goes on as if nothing had been sent.
__device__ __noinline__ inline void expire(const DeviceContext& context, const WaitSite& site,
                                           uint64_t waited_ns) {
  if (context.enable_shrink) {
    atomicExch(context.mask + site.peer, 1);
  } else {
    record_problem(context, Problem::kTimeout, site, waited_ns);
  }
}

// Spins until `arrived(word)`; false when masked meanwhile or at `deadline_ns`.
template <typename Arrived>
__device__ __forceinline__ bool wait_word(const DeviceContext& context, const uint64_t* address,
                                          uint64_t start_ns, uint64_t deadline_ns,
                                          const WaitSite& site, uint64_t& word, Arrived arrived) {
  word = load_acquire_system(address);
  if (arrived(word)) return true;
  for (uint32_t spin = 1;; ++spin) {
    word = load_acquire_system(address);
    if (arrived(word)) return true;
    if ((spin & 127u) != 0) continue;
    if (is_masked(context, site.peer)) return false;
    const uint64_t now = global_nanoseconds();
    if (now >= deadline_ns) {
      expire(context, site, now - start_ns);
      return false;
    }
  }
}

}  // namespace ep_runtime
