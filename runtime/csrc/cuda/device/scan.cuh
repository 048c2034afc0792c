// Row numbers from row counts: a warp's prefix sum, and the way back from a row to its segment.
#pragma once

namespace ep_runtime {

// Exclusive prefix sums of count(0) ... count(n-1) into begins[0..n), and their total into
// begins[n]. All lanes of one warp call together. Counts may come from memory: those of kAtOnce
// groups of 32 are asked for before the first is needed.
template <typename Count>
__device__ __forceinline__ void warp_exclusive_sum(int* begins, int n, Count count) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32;
  int carry = 0;
  for (int first = 0; first < n; first += 32 * kAtOnce) {
    int own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + 32 * i + lane;
      own[i] = index < n ? count(index) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i >= n) break;
      int sum = own[i];
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += other;
      }
      const int index = first + 32 * i + lane;
      if (index < n) begins[index] = carry + sum - own[i];
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
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
