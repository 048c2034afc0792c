// The dispatch kernel: its phases in one launch or in two.
#include "dispatch.hpp"
#include "dispatch_receive.cuh"
#include "dispatch_send.cuh"

namespace ep_runtime {
namespace {

constexpr int kDispatchThreads = 512;

// Shared memory in front of the table of selections, which is read by vectors.
__host__ __device__ constexpr uint64_t counted_words(int experts, int ranks, int local_experts) {
  return uint64_t(experts) + ranks + 1 + local_experts;
}
__host__ __device__ constexpr uint64_t align_to_vector(uint64_t words) {
  return (words + 3) / 4 * 4;
}

template <bool kFp8, bool kStaged>
__global__ void __launch_bounds__(kDispatchThreads, 1)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  extern __shared__ __align__(16) int dynamic[];
  int* counts = dynamic;                            // [L, R]
  int* rows = counts + p.num_experts;               // [R + 1]
  int* histogram = rows + p.context.num_ranks + 1;  // [L]
  uint32_t* table = reinterpret_cast<uint32_t*>(    // [T, K]
      dynamic +
      align_to_vector(counted_words(p.num_experts, p.context.num_ranks, p.experts_per_rank)));
  __shared__ DispatchSendShared send;
  __shared__ LaunchShared launch;

  Counters* counters = p.context.counters;
  // All that is known to be needed is asked for at once.
  const bool stages = kStaged && (p.phases & kSend);
  LoadedSelections selections = {};
  if (stages) selections = load_selections(p, first_staged_token(p));
  const int token = static_cast<int>(blockIdx.x);
  Chunk chunk = {};
  if (p.phases & kSend) chunk = load_chunk(p, token);
  // The fence behind this takes a while: best in a block without a token, and not one that counts.
  const int poster = min(p.num_tokens, static_cast<int>(gridDim.x) - 1);
  const bool posts = blockIdx.x == poster && threadIdx.x >= blockDim.x - 32;
  const uint64_t completed = posts ? completed_receives(*counters) : 0;
  begin_launch(p.context, p.layout, p.phases, &counters->dispatch_sends, p.op_epoch, p.timeout_ns,
               launch);
  if (stages) stage_selections(p, table, selections);
  Encoded<kFp8> encoded = {};
  if (p.phases & kSend) encoded = encode_chunk<kFp8>(p, token, chunk);
  __syncthreads();

  if (posts) post_acknowledgements(p.context, p.layout, completed);
  if (p.phases & kSend) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      own_places(p)[0] = p.num_tokens;
      own_places(p)[1] = p.num_topk;
    }
    send_counts<kStaged>(p, send, launch, table, histogram);
    // State: sent, once all blocks are here.
    send_rows<kFp8, kStaged>(p, send, launch, table, encoded);
  }
  if (p.phases & kReceive) {
    receive_counts(p, launch, counts, rows);
    __syncthreads();
    if (threadIdx.x >= blockDim.x - 32) {
      warp_exclusive_sum<1>(rows, p.context.num_ranks, [=](int rank) { return rows[rank]; });
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
  return sizeof(int) *
         align_to_vector(counted_words(layout.num_experts, layout.num_ranks, layout.local_experts));
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
