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
  extern __shared__ int dynamic[];
  const SentRows sent = {dynamic, dynamic + p.experts_per_rank + 1,
                         dynamic + 2 * p.experts_per_rank + 1};
  __shared__ Destination destination;
  __shared__ CombineReceiveShared receive;
  __shared__ LaunchShared launch;

  Counters* counters = p.context.counters;
  begin_launch(p.context, p.layout, p.phases, &counters->combine_sends, p.op_epoch, p.timeout_ns,
               launch);
  if ((p.phases & kSend) && threadIdx.x >= blockDim.x - 32) load_sent_rows<kLogfmt>(p, sent);
  Selection selection = {-1, 0.0f, -1};
  if (p.phases & kReceive) selection = load_selection<kLogfmt>(p, blockIdx.x / parts_of_token(p));
  __syncthreads();

  if (blockIdx.x == gridDim.x - 1 && threadIdx.x >= blockDim.x - 32) {
    post_acknowledgements(p.context, p.layout);
  }
  // State: sent, once all blocks are through.
  if (p.phases & kSend) combine_send<kLogfmt>(p, launch, sent, destination);
  if (p.phases & kReceive) {
    combine_receive<kLogfmt>(p, launch, receive, selection);  // State: read, likewise.
    __syncthreads();
    if (threadIdx.x == 0) {
      // State: complete, with the last block's share.
      add_relaxed_gpu(&counters->combine_receives[slot_of(launch.epoch)], ticket_share());
    }
  }
}

}  // namespace

uint64_t combine_shared_bytes(const LowLatencyLayout& layout) {
  return sizeof(int) * (3 * uint64_t{layout.local_experts} + 1);
}

cudaError_t prepare_combine(int shared_bytes) {
  for (auto kernel : {combine_kernel<true>, combine_kernel<false>}) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_combine(const CombineParams& params, int num_blocks, cudaStream_t stream) {
  const uint64_t shared = combine_shared_bytes(params.layout);
  auto kernel = params.use_logfmt ? combine_kernel<true> : combine_kernel<false>;
  kernel<<<num_blocks, kCombineThreads, shared, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace ep_runtime
