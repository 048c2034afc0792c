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
  // All that is known to be needed is asked for at once, by different warps.
  const Share share = share_of_block(p);
  const int warp_from_last = kCombineThreads / 32 - 1 - static_cast<int>(threadIdx.x / 32);
  if (p.phases & kSend) {
    if (warp_from_last == 0) load_sent_rows<kLogfmt>(p, sent);
    if (warp_from_last == 1) load_own_rows<kLogfmt>(p, sent);
  }
  const bool posts = blockIdx.x == gridDim.x - 1 && warp_from_last == 2;
  const uint64_t completed = posts ? completed_receives(*counters) : 0;
  Selection selection = {-1, 0.0f, -1};
  if (p.phases & kReceive) selection = load_selection<kLogfmt>(p, share.token);
  begin_launch(p.context, p.layout, p.phases, &counters->combine_sends, p.op_epoch, p.timeout_ns,
               launch);
  __syncthreads();

  if (posts) post_acknowledgements(p.context, p.layout, completed);
  // State: sent, once all blocks are through.
  if (p.phases & kSend) combine_send<kLogfmt>(p, launch, sent, destination);
  if (p.phases & kReceive) {
    combine_receive<kLogfmt>(p, launch, receive, share, selection);  // State: read, likewise.
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
