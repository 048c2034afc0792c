// The combine kernel: its phases in one launch or in two.
#include "combine.hpp"
#include "combine_receive.cuh"
#include "combine_send.cuh"

namespace ep_runtime {
namespace {

constexpr int kCombineThreads = 512;

template <bool kLogfmt>
__global__ void __launch_bounds__(kCombineThreads, 1)
    combine_kernel(const __grid_constant__ CombineParams p) {
  extern __shared__ int begins[];  // [L + 1]
  __shared__ Destination destination;
  __shared__ CombineReceiveShared receive;
  __shared__ uint64_t shared_epoch;
  __shared__ Timing shared_timing;

  Counters* counters = p.context.counters;
  if (threadIdx.x == 0) {
    const uint64_t now = global_nanoseconds();
    shared_timing = {now, now + p.timeout_ns};
    if (p.phases & kSend) {
      shared_epoch = next_epoch(&counters->combine_sends);
      add_release_gpu(&counters->combine_sends, ticket_share());
      if (blockIdx.x == 0) *p.op_epoch = shared_epoch;
    } else {
      shared_epoch = *p.op_epoch;
    }
  }
  __syncthreads();
  const uint64_t epoch = shared_epoch;
  const Timing timing = shared_timing;

  if (blockIdx.x == gridDim.x - 1 && threadIdx.x >= blockDim.x - 32) {
    post_acknowledgements(p.context, p.layout);
  }
  if (p.phases & kSend) combine_send(p, begins, destination, epoch, timing);
  if (p.phases & kReceive) {
    combine_receive<kLogfmt>(p, receive, epoch, timing);
    __syncthreads();
    if (threadIdx.x == 0) {
      add_release_gpu(&counters->combine_receives[slot_of(epoch)], ticket_share());
    }
  }
}

}  // namespace

cudaError_t launch_combine(const CombineParams& params, int num_blocks, cudaStream_t stream) {
  const size_t shared = sizeof(int) * (params.experts_per_rank + 1);
  auto kernel = params.use_logfmt ? combine_kernel<true> : combine_kernel<false>;
  kernel<<<num_blocks, kCombineThreads, shared, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace ep_runtime
