// The dispatch kernel: its phases in one launch or in two.
#include "dispatch.hpp"
#include "dispatch_receive.cuh"
#include "dispatch_send.cuh"

namespace ep_runtime {
namespace {

constexpr int kDispatchThreads = 512;

template <bool kFp8, bool kStaged>
__global__ void __launch_bounds__(kDispatchThreads, 1)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  extern __shared__ int dynamic[];
  int* counts = dynamic;                                                          // [L, R]
  int* rows = counts + p.num_experts;                                             // [R + 1]
  int* histogram = rows + p.context.num_ranks + 1;                                // [L]
  uint32_t* table = reinterpret_cast<uint32_t*>(histogram + p.experts_per_rank);  // [T, K]
  __shared__ DispatchSendShared send;
  __shared__ LaunchShared launch;

  Counters* counters = p.context.counters;
  begin_launch(p.context, p.layout, p.phases, &counters->dispatch_sends, p.op_epoch, p.timeout_ns,
               launch);
  if constexpr (kStaged) {
    if (p.phases & kSend) stage_selections(p, table);
  }
  __syncthreads();

  if (blockIdx.x == gridDim.x - 1 && threadIdx.x >= blockDim.x - 32) {
    post_acknowledgements(p.context, p.layout);
  }
  if (p.phases & kSend) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      own_places(p)[0] = p.num_tokens;
      own_places(p)[1] = p.num_topk;
    }
    send_counts<kStaged>(p, send, launch, table, histogram);
    send_rows<kFp8, kStaged>(p, send, launch, table);  // State: sent, once all blocks are here.
  }
  if (p.phases & kReceive) {
    receive_counts(p, launch, counts, rows);
    __syncthreads();
    if (threadIdx.x >= blockDim.x - 32) {
      warp_exclusive_sum(rows, p.context.num_ranks, [=](int rank) { return rows[rank]; });
    }
    place_ranks(p, counts);
    __syncthreads();
    receive_rows<kFp8>(p, launch, counts, rows);  // State: read, once all blocks are here.
    __syncthreads();
    if (threadIdx.x == 0) {
      // State: complete, with the last block's share.
      add_relaxed_gpu(&counters->dispatch_receives[slot_of(launch.epoch)], ticket_share());
    }
  }
}

}  // namespace

uint64_t dispatch_shared_bytes(const LowLatencyLayout& layout) {
  return sizeof(int) * (uint64_t{layout.num_experts} + layout.num_ranks + 1 + layout.local_experts);
}

cudaError_t prepare_dispatch(int shared_bytes) {
  for (auto kernel : {dispatch_kernel<true, true>, dispatch_kernel<true, false>,
                      dispatch_kernel<false, true>, dispatch_kernel<false, false>}) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_dispatch(const DispatchParams& params, int num_blocks, int shared_bytes,
                            cudaStream_t stream) {
  const uint64_t base = dispatch_shared_bytes(params.layout);
  const uint64_t with_table =
      base + sizeof(uint32_t) * uint64_t(params.num_tokens) * params.num_topk;
  const bool staged = with_table <= static_cast<uint64_t>(shared_bytes);
  auto kernel = params.use_fp8
                    ? (staged ? dispatch_kernel<true, true> : dispatch_kernel<true, false>)
                    : (staged ? dispatch_kernel<false, true> : dispatch_kernel<false, false>);
  kernel<<<num_blocks, kDispatchThreads, staged ? with_table : base, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace ep_runtime
