// LogFMT-10: 128 channels as signs and 9-bit codes of their logarithms between the group's
// smallest and largest magnitude; 168 of the group's 256 bytes travel. A group whose largest
// magnitude is 1 or more, or whose magnitudes are all alike, stays BF16.
// Definition and rounding: ep_runtime.numerics.
#pragma once

#include "quantize.cuh"

namespace ep_runtime {

constexpr int kLogfmtWordsPerThread = 5;  // 16 values: 144 code bits and 16 sign bits
constexpr int kLogfmtCodeBytes = kThreadsPerScale * kLogfmtWordsPerThread * 4;
constexpr float kLogfmtRange = 32.0f;
constexpr float kLogfmtSteps = 510.0f;
constexpr int kGroupBytes = 2 * kChannelsPerScale;

struct LogRange {
  float low;
  float step;
};

// Encodes the thread's 16 channels into its share of the group's slot. The eight neighbouring
// lanes of a group call together; false (in all of them) leaves the slot untouched.
__device__ __forceinline__ bool encode_logfmt(const uint4& first, const uint4& second,
                                              uint8_t* group_slot) {
  const uint32_t words[8] = {first.x,  first.y,  first.z,  first.w,
                             second.x, second.y, second.z, second.w};
  float values[kChannelsPerThread];
#pragma unroll
  for (int i = 0; i < 8; ++i) unpack_bf16(words[i], values[2 * i], values[2 * i + 1]);
  float amax = 0.0f;
  float amin = __int_as_float(0x7f800000);
  bool finite = true;
#pragma unroll
  for (float value : values) {
    amax = fmaxf(amax, fabsf(value));
    amin = fminf(amin, fabsf(value));
    finite = finite && value == value;
  }
  const uint32_t group = 0xffu << (threadIdx.x & 24u);
#pragma unroll
  for (int offset = 1; offset < kThreadsPerScale; offset *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(group, amax, offset));
    amin = fminf(amin, __shfl_xor_sync(group, amin, offset));
  }
  if (!__all_sync(group, finite)) return false;
  const float log_max = log2f(amax);
  const float log_min = fmaxf(log2f(amin), log_max - kLogfmtRange);
  if (!(log_max < 0.0f) || !(log_min < log_max)) return false;
  const float step = (log_max - log_min) / kLogfmtSteps;
  const float rounding = 2.0f - log2f((1.0f + exp2f(step)) * 0.5f) / step;
  uint32_t out[kLogfmtWordsPerThread] = {};
#pragma unroll
  for (int i = 0; i < kChannelsPerThread; ++i) {
    const float position = (log2f(fabsf(values[i])) - log_min) / step + rounding;
    const uint32_t code =
        static_cast<uint32_t>(fminf(fmaxf(floorf(position), 0.0f), kLogfmtSteps + 1.0f));
    const int bit = 9 * i;
    out[bit / 32] |= code << (bit % 32);
    if (bit % 32 > 23) out[bit / 32 + 1] |= code >> (32 - bit % 32);
    out[4] |= (__float_as_uint(values[i]) >> 31) << (16 + i);
  }
  uint32_t* slot = reinterpret_cast<uint32_t*>(group_slot);
  const int lane = threadIdx.x % kThreadsPerScale;
#pragma unroll
  for (int i = 0; i < kLogfmtWordsPerThread; ++i) slot[lane * kLogfmtWordsPerThread + i] = out[i];
  if (lane == 0) {
    *reinterpret_cast<float2*>(group_slot + kLogfmtCodeBytes) = make_float2(log_min, step);
  }
  return true;
}

__device__ __forceinline__ void decode_logfmt(const uint8_t* group_slot, int lane,
                                              float (&values)[kChannelsPerThread]) {
  const uint32_t* slot =
      reinterpret_cast<const uint32_t*>(group_slot) + lane * kLogfmtWordsPerThread;
  uint32_t words[kLogfmtWordsPerThread];
#pragma unroll
  for (int i = 0; i < kLogfmtWordsPerThread; ++i) words[i] = slot[i];
  const float2 range = *reinterpret_cast<const float2*>(group_slot + kLogfmtCodeBytes);
#pragma unroll
  for (int i = 0; i < kChannelsPerThread; ++i) {
    const int bit = 9 * i;
    uint32_t code = words[bit / 32] >> (bit % 32);
    if (bit % 32 > 23) code |= words[bit / 32 + 1] << (32 - bit % 32);
    code &= 0x1ffu;
    const float magnitude =
        code == 0 ? 0.0f : exp2f(static_cast<float>(code - 1) * range.y + range.x);
    values[i] = (words[4] >> (16 + i)) & 1u ? -magnitude : magnitude;
  }
}

}  // namespace ep_runtime
