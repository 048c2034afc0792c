// Clean: barrier, zero every word that a wait reads, barrier. The first barrier keeps a fast rank
// from zeroing what a slow one is still reading, the second from sending into what is being zeroed.
#include "clean.hpp"
#include "device/protocol.cuh"

namespace ep_runtime {
namespace {

constexpr int kCleanThreads = 1024;

__device__ void barrier(const CleanParams& p, uint64_t value, const Timing& timing) {
  const int peer = threadIdx.x;
  if (peer < p.context.num_ranks && !is_masked(p.context, peer)) {
    const uint64_t offset = p.layout.barrier_at(p.context.rank);
    if (only_by_put(p.context, peer)) {
      if constexpr (kMayPut) put_word(p.context, peer, offset, value);
    } else {
      store_release_system(word_at(peer_base(p.context, peer), offset), value);
    }
    uint64_t word;
    // A peer may already be one barrier ahead.
    wait_word(p.context, word_at(p.context.local, p.layout.barrier_at(peer)), timing.start_ns,
              timing.deadline_ns, WaitSite{Phase::kClean, peer, -1, -1}, word,
              [=](uint64_t seen) { return seen == value || seen == value + 1; });
  }
  __syncthreads();
}

__device__ void zero_words(uint8_t* base, uint64_t begin, uint64_t end) {
  for (uint64_t at = begin + threadIdx.x * kWordBytes; at < end; at += kCleanThreads * kWordBytes) {
    *word_at(base, at) = 0;
  }
}

// Operations that were sent and never received count as received: their rows are forgotten, and
// the next sender must not wait for them.
__device__ void settle(uint64_t sends, uint64_t (&receives)[kSlots]) {
  const uint64_t epoch = sends / kTicket;
  receives[1] = (epoch + 1) / 2 * kTicket;
  receives[0] = epoch / 2 * kTicket;
}

__global__ void __launch_bounds__(kCleanThreads, 1)
    clean_kernel(const __grid_constant__ CleanParams p) {
  __shared__ uint64_t clean;
  __shared__ Timing shared_timing;
  if (threadIdx.x == 0) {
    shared_timing = starting_now(p.timeout_ns);
    clean = ++p.context.counters->cleans;
    if constexpr (kMayPut) drain_puts();  // no row of ours may land behind a peer's zeroes
  }
  __syncthreads();
  barrier(p, 2 * clean - 1, shared_timing);  // State: met.
  if (threadIdx.x == 0) {
    Counters& counters = *p.context.counters;
    settle(counters.dispatch_sends, counters.dispatch_receives);
    settle(counters.combine_sends, counters.combine_receives);
  }
  uint8_t* local = p.context.local;
  zero_words(local, p.layout.ack, p.layout.barrier);
  zero_words(local, p.layout.dispatch_count, p.layout.dispatch_row);
  const uint64_t rows = kSlots * p.context.num_ranks * p.layout.max_tokens;
  for (uint64_t row = threadIdx.x; row < rows; row += kCleanThreads) {
    *word_at(local, p.layout.dispatch_row + row * p.layout.dispatch_row_stride) = 0;
  }
  __syncthreads();
  // A deadline of its own: the first barrier may have waited to the end of its, for a rank that
  // was lost, and the others pass it as late.
  if (threadIdx.x == 0) shared_timing = starting_now(p.timeout_ns);
  __syncthreads();
  // State: zeroed.
  barrier(p, 2 * clean, shared_timing);
}

}  // namespace

cudaError_t launch_clean(const CleanParams& params, cudaStream_t stream) {
  clean_kernel<<<1, kCleanThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace ep_runtime
