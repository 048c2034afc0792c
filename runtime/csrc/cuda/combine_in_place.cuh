// Expert rows of this rank's own tokens: a launch of both phases sums them where they lie in `x`.
//
// The dispatch leaves their places behind the two parts of src_info: its numbers of tokens and of
// selections, then a place for each selection, -1 where there is none. So nobody sends such a row,
// and nobody waits for it.
#pragma once

#include "combine.hpp"
#include "device/protocol.cuh"

namespace ep_runtime {

// Rows of `x`, and of each part of src_info.
__device__ __forceinline__ int64_t rows_of_experts(int num_experts, int max_tokens) {
  return static_cast<int64_t>(num_experts) * max_tokens;  // [L, R*M]
}

template <typename Params>
__device__ __forceinline__ auto own_places(const Params& p) {
  return p.src_info + 2 * rows_of_experts(p.num_experts, p.max_tokens);
}

template <typename Params>
__device__ __forceinline__ int own_place_at(const Params& p, int token, int k) {
  return 2 + token * static_cast<int>(p.layout.topk_capacity) + k;
}

// Whether rows for `rank` are read in place. With phases in two launches the caller may write to
// `x` in between; LogFMT rows must be encoded.
template <bool kLogfmt>
__device__ __forceinline__ bool in_place(const CombineParams& p, int rank) {
  return !kLogfmt && p.phases == (kSend | kReceive) && rank == p.context.rank;
}

__device__ __forceinline__ const uint8_t* row_in_place(const CombineParams& p, int64_t place) {
  return p.x + place * p.x_row_bytes;
}

}  // namespace ep_runtime
