// Expert rows of this rank's own tokens: a launch of both phases sums them where they lie in `x`.
#pragma once

#include "combine.hpp"
#include "device/protocol.cuh"

namespace ep_runtime {

// Whether a row for `rank` is read in place: its flag is then the tagged number of its place in
// `x`. With phases in two launches the caller may write to `x` in between; LogFMT rows must be
// encoded.
template <bool kLogfmt>
__device__ __forceinline__ bool in_place(const CombineParams& p, int rank) {
  return !kLogfmt && p.phases == (kSend | kReceive) && rank == p.context.rank;
}

__device__ __forceinline__ const uint8_t* row_in_place(const CombineParams& p, uint64_t place) {
  return p.x + static_cast<int64_t>(place) * p.x_row_bytes;
}

}  // namespace ep_runtime
