// Parameters of the dispatch kernel.
#pragma once

#include <cuda_runtime.h>

#include "context.hpp"

namespace ep_runtime {

struct DispatchParams {
  DeviceContext context;
  LowLatencyLayout layout;
  const uint4* x;           // [T, H] bfloat16
  const int64_t* topk_idx;  // [T, K]
  uint8_t* recv_x;          // [L, R*M, H]
  void* scales;             // float [L, H/128, R*M] or int32 [L, H/512, R*M]
  int* recv_count;          // [L]
  int* src_info;          // [2, L, R*M]: token, then place in its top-k row; own_places() behind it
  int64_t* layout_range;  // [L, R]
  int* cumulative_stats;  // [L] or null
  unsigned long long* wait_stats;  // [R] clock cycles, or null
  uint64_t* op_epoch;              // handed from a send launch to its receive launch
  uint64_t timeout_ns;
  int num_tokens;
  int num_topk;
  int hidden;  // the layout's sizes again, signed for index arithmetic
  int num_experts;
  int experts_per_rank;
  int max_tokens;
  int phases;
  bool use_fp8;
  bool round_scale;
  bool use_ue8m0;
};

// Shared memory of a block that does not stage its selections.
uint64_t dispatch_shared_bytes(const LowLatencyLayout& layout);

// Once per process and device: allow the kernels up to `shared_bytes`.
cudaError_t prepare_dispatch(int shared_bytes);

cudaError_t launch_dispatch(const DispatchParams& params, int num_blocks, int shared_bytes,
                            cudaStream_t stream);

}  // namespace ep_runtime
