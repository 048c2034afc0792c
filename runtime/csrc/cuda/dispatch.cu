// The dispatch kernel: its phases in one launch or in two.
#include "dispatch.hpp"
#include "dispatch_receive.cuh"
#include "dispatch_send.cuh"

namespace ep_runtime {
namespace {

constexpr int kMaxRowThreads = 512;

template <bool kFp8>
__global__ void __launch_bounds__(kMaxRowThreads + kCountThreads, 1)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  extern __shared__ int dynamic[];
  int* counts = dynamic;                            // [L, R]
  int* rows = counts + p.num_experts;               // [R + 1]
  int* histogram = rows + p.context.num_ranks + 1;  // [L]
  __shared__ DispatchSendShared send;
  __shared__ uint64_t shared_epoch;
  __shared__ Timing shared_timing;

  Counters* counters = p.context.counters;
  if (threadIdx.x == 0) {
    const uint64_t now = global_nanoseconds();
    shared_timing = {now, now + p.timeout_ns};
    if (p.phases & kSend) {
      shared_epoch = next_epoch(&counters->dispatch_sends);
      add_release_gpu(&counters->dispatch_sends, ticket_share());
      if (blockIdx.x == 0) *p.op_epoch = shared_epoch;
    } else {
      shared_epoch = *p.op_epoch;
    }
  }
  __syncthreads();
  const uint64_t epoch = shared_epoch;
  const Timing timing = shared_timing;

  if (blockIdx.x == gridDim.x - 1 && threadIdx.x < 32) {
    post_acknowledgements(p.context, p.layout);
  }
  if (p.phases & kSend) {
    if (threadIdx.x < p.row_threads) {
      send_rows<kFp8>(p, send, epoch, timing);
    } else {
      send_counts(p, send, histogram, epoch, timing);
    }
  }
  if (p.phases & kReceive) {
    receive_counts(p, counts, rows, epoch, timing);
    __syncthreads();
    place_ranks(p, counts);
    prefix_rows(rows, p.context.num_ranks);
    __syncthreads();
    receive_rows<kFp8>(p, counts, rows, epoch, timing);
    __syncthreads();
    if (threadIdx.x == 0) {
      add_release_gpu(&counters->dispatch_receives[slot_of(epoch)], ticket_share());
    }
  }
}

}  // namespace

cudaError_t launch_dispatch(const DispatchParams& params, int num_blocks, cudaStream_t stream) {
  DispatchParams p = params;
  const int chunks = p.hidden / kChannelsPerThread;
  p.row_threads = max(32, min(kMaxRowThreads, (chunks + 31) / 32 * 32));
  const int threads = p.row_threads + kCountThreads;
  const size_t shared =
      sizeof(int) * (p.num_experts + p.context.num_ranks + 1 + p.experts_per_rank);
  auto kernel = p.use_fp8 ? dispatch_kernel<true> : dispatch_kernel<false>;
  kernel<<<num_blocks, threads, shared, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace ep_runtime
