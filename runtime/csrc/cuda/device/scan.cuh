// Row numbers from row counts: a warp's prefix sum, and the way back from a row to its segment.
#pragma once

namespace ep_runtime {

// Exclusive prefix sums of count(0) ... count(n-1) into begins[0..n), and their total into
// begins[n]; n is at least 1. All lanes of one warp call together; a lane adds up kPerLane
// neighbours, so that 32 * kPerLane counts take one round of shuffles. `count` may read memory: it
// is called for all of a lane's counts before one is used, without a branch, so that its loads do
// not wait for each other. It must not store anything for the same reason.
template <int kPerLane, typename Count>
__device__ __forceinline__ void warp_exclusive_sum(int* begins, int n, Count count) {
  const int lane = threadIdx.x % 32;
  int carry = 0;
#pragma unroll 1
  for (int first = 0; first < n; first += 32 * kPerLane) {
    const int base = first + lane * kPerLane;
    int own[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) own[i] = count(min(base + i, n - 1));
    __syncwarp();  // `begins` may be what `count` reads, and other lanes read the last one, too
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (base + i >= n) own[i] = 0;
      sum += own[i];
    }
    int up_to = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, up_to, offset);
      if (lane >= offset) up_to += other;
    }
    int begin = carry + up_to - sum;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (base + i < n) begins[base + i] = begin;
      begin += own[i];
    }
    carry += __shfl_sync(0xffffffffu, up_to, 31);
  }
  if (lane == 0) begins[n] = carry;
}

// Last index in the ascending `begins` whose value is not above `position`.
__device__ __forceinline__ int find_segment(const int* begins, int n, int position) {
  int low = 0;
  int high = n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begins[middle] <= position ? low : high) = middle;
  }
  return low;
}

}  // namespace ep_runtime
