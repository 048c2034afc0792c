// FP8 with one scale per 128 channels; the same bits as ep_runtime.numerics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace ep_runtime {

constexpr int kChannelsPerScale = 128;
constexpr int kChannelsPerThread = 16;
constexpr int kThreadsPerScale = kChannelsPerScale / kChannelsPerThread;
constexpr float kFp8Max = 448.0f;
constexpr float kMinAmax = 1e-4f;

struct ScalePair {
  float scale;    // multiplies before the cast
  float inverse;  // travels with the row
};

__device__ __forceinline__ ScalePair make_scale(float amax, bool round_scale) {
  amax = fmaxf(amax, kMinAmax);
  const float exact = __fdiv_rn(amax, kFp8Max);
  if (!round_scale) return {__fdiv_rn(kFp8Max, amax), exact};
  // The smallest power of two that is not below amax / 448.
  const uint32_t bits = __float_as_uint(exact);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
  // An infinite amax has exponent 255: its reciprocal is zero, as without rounding.
  const uint32_t reciprocal = exponent < 254u ? 254u - exponent : 0u;
  return {__uint_as_float(reciprocal << 23), __uint_as_float(exponent << 23)};
}

__device__ __forceinline__ void unpack_bf16(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Sixteen BF16 channels of one thread to FP8. The eight neighbouring lanes that share a scale
// call together; returns the inverse scale in all of them.
__device__ __forceinline__ float quantize_chunk(const uint4& first, const uint4& second,
                                                bool round_scale, uint4& out) {
  float values[kChannelsPerThread];
  const uint32_t words[8] = {first.x,  first.y,  first.z,  first.w,
                             second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) unpack_bf16(words[i], values[2 * i], values[2 * i + 1]);
  float amax = 0.0f;
#pragma unroll
  for (float value : values) amax = fmaxf(amax, fabsf(value));
  const uint32_t group = 0xffu << (threadIdx.x & 24u);
#pragma unroll
  for (int offset = 1; offset < kThreadsPerScale; offset *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(group, amax, offset));
  }
  const ScalePair scale = make_scale(amax, round_scale);
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 low = {values[4 * i] * scale.scale, values[4 * i + 1] * scale.scale};
    const float2 high = {values[4 * i + 2] * scale.scale, values[4 * i + 3] * scale.scale};
    packed[i] = static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3)) |
                static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3))
                    << 16;
  }
  out = {packed[0], packed[1], packed[2], packed[3]};
  return scale.inverse;
}

// Four float scales, powers of two, to four exponent bytes.
__device__ __forceinline__ uint32_t pack_ue8m0(const float4& scales) {
  return (__float_as_uint(scales.x) >> 23) | ((__float_as_uint(scales.y) >> 23) << 8) |
         ((__float_as_uint(scales.z) >> 23) << 16) | ((__float_as_uint(scales.w) >> 23) << 24);
}

}  // namespace ep_runtime
