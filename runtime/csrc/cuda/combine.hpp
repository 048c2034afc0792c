// Parameters of the combine kernel.
#pragma once

#include <cuda_runtime.h>

#include "context.hpp"

namespace ep_runtime {

struct CombineParams {
  DeviceContext context;
  LowLatencyLayout layout;
  const uint8_t* x;                // [L, R*M, H] bfloat16, rows `x_row_bytes` apart
  const int* src_info;             // [2, L, R*M] and own_places() from the dispatch
  const int64_t* layout_range;     // [L, R] from the dispatch
  const int64_t* topk_idx;         // [T, K] of this rank's tokens
  const float* topk_weights;       // [T, K]
  uint4* out;                      // [T, H] bfloat16
  unsigned long long* wait_stats;  // [R] clock cycles, or null
  uint64_t* op_epoch;              // handed from a send launch to its receive launch
  uint64_t timeout_ns;
  int64_t x_row_bytes;
  int num_tokens;
  int num_topk;
  int hidden;  // the layout's sizes again, signed for index arithmetic
  int num_experts;
  int experts_per_rank;
  int max_tokens;
  int phases;
  bool use_logfmt;
};

// Shared memory of a block.
uint64_t combine_shared_bytes(const LowLatencyLayout& layout);

// Once per process and device: allow the kernels up to `shared_bytes`.
cudaError_t prepare_combine(int shared_bytes);

cudaError_t launch_combine(const CombineParams& params, int num_blocks, cudaStream_t stream);

}  // namespace ep_runtime
