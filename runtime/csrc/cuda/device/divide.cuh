// Division of small numbers: the integer one takes 100 cycles and more, in chains that nothing
// hides where a kernel takes a few thousand.
#pragma once

namespace ep_runtime {

// a / b for 0 <= a < 2^20 and b > 0, exact: (a + 0.5) / b is at least 0.5 / b away from a whole
// number, which is more than 2^-21 of the quotient; reciprocal and product err by 1.5 * 2^-23.
__device__ __forceinline__ int divide_small(int a, int b) {
  return static_cast<int>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

}  // namespace ep_runtime
