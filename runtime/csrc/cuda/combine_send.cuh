// Combine, send phase. Each expert row goes back to the slot (token, place in the top-k row) of
// the rank it came from, and is published by a flag of its own: the receiver can sum a token as
// soon as that token's rows are there.
#pragma once

#include "combine.hpp"
#include "device/logfmt.cuh"
#include "device/protocol.cuh"

namespace ep_runtime {

struct Destination {
  const uint8_t* source;
  uint8_t* row;  // null: nothing to send
  uint64_t* flag;
};

// Exclusive prefix sums of the experts' row counts by the first warp; begins[L] is the total.
__device__ inline void load_row_begins(const CombineParams& p, int* begins) {
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  const int num_ranks = p.context.num_ranks;
  int carry = 0;
  for (int first = 0; first < p.experts_per_rank; first += 32) {
    int own = 0;
    if (first + lane < p.experts_per_rank) {
      const int64_t last = p.layout_range[(first + lane) * num_ranks + num_ranks - 1];
      own = static_cast<int>(last >> 32) + static_cast<int>(last & 0xffffffff);
    }
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (first + lane < p.experts_per_rank) begins[first + lane] = carry + sum - own;
    carry += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) begins[p.experts_per_rank] = carry;
}

// One thread resolves where row number `row` of this rank goes, and waits until it may.
__device__ inline Destination resolve_row(const CombineParams& p, const int* begins, int row,
                                          uint64_t epoch, const Timing& timing) {
  int low = 0;
  int high = p.experts_per_rank;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begins[middle] <= row ? low : high) = middle;
  }
  const int64_t place =
      static_cast<int64_t>(low) * p.context.num_ranks * p.max_tokens + row - begins[low];
  const int token = p.src_info[place];
  const int back = p.src_info[static_cast<int64_t>(p.num_experts) * p.max_tokens + place];
  const int rank = back >> 8;
  if (is_masked(p.context, rank) ||
      !wait_slot_free(p.context, word_at(p.context.local, p.layout.combine_ack_at(rank)), rank,
                      epoch, timing, Phase::kCombineSend)) {
    return {nullptr, nullptr, nullptr};
  }
  uint8_t* base = p.context.peers[rank];
  const int slot = slot_of(epoch);
  return {p.x + place * p.x_row_bytes, base + p.layout.combine_row_at(slot, token, back & 0xff),
          word_at(base, p.layout.combine_flag_at(slot, token, back & 0xff))};
}

__device__ __forceinline__ void copy_row(const Destination& destination, int words, int thread,
                                         int num_threads) {
  const uint4* source = reinterpret_cast<const uint4*>(destination.source);
  uint4* row = reinterpret_cast<uint4*>(destination.row);
  constexpr int kUnroll = 8;
  for (int first = thread; first < words; first += num_threads * kUnroll) {
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * num_threads < words)
        values[i] = load_stream(source + first + i * num_threads);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * num_threads < words) store_stream(row + first + i * num_threads, values[i]);
    }
  }
}

// One warp encodes one row, four groups of 128 channels at a time.
__device__ __forceinline__ void encode_row(const Destination& destination, int hidden) {
  const int lane = threadIdx.x % 32;
  const int chunks = hidden / kChannelsPerThread;
  uint32_t encoded_groups = 0;
  uint32_t* trailer = reinterpret_cast<uint32_t*>(destination.row + 2 * hidden);
  for (int first = 0, step = 0; first < chunks; first += 32, ++step) {
    const int chunk = first + lane;
    bool encoded = false;
    if (chunk < chunks) {
      const uint4* source = reinterpret_cast<const uint4*>(destination.source) + 2 * chunk;
      const uint4 low = load_stream(source);
      const uint4 high = load_stream(source + 1);
      uint8_t* slot = destination.row + chunk / kThreadsPerScale * kGroupBytes;
      encoded = encode_logfmt(low, high, slot);
      if (!encoded) {
        uint4* plain = reinterpret_cast<uint4*>(destination.row) + 2 * chunk;
        store_stream(plain, low);
        store_stream(plain + 1, high);
      }
    }
    const uint32_t votes = __ballot_sync(0xffffffffu, encoded && lane % kThreadsPerScale == 0);
    const uint32_t four =
        (votes & 1u) | (votes >> 7 & 2u) | (votes >> 14 & 4u) | (votes >> 21 & 8u);
    encoded_groups |= four << (step % 8 * 4);
    if (step % 8 == 7 || first + 32 >= chunks) {
      if (lane == 0) trailer[step / 8] = encoded_groups;
      encoded_groups = 0;
    }
  }
}

// Many rows: each warp takes its own, so that all of them are in flight at once.
__device__ inline void send_rows_by_warp(const CombineParams& p, const int* begins, uint64_t epoch,
                                         const Timing& timing) {
  const int lane = threadIdx.x % 32;
  const int num_warps = static_cast<int>(gridDim.x * (blockDim.x / 32));
  const int num_rows = begins[p.experts_per_rank];
  for (int row = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x); row < num_rows;
       row += num_warps) {
    const Destination destination = resolve_row(p, begins, row, epoch, timing);
    // Lanes resolve for themselves, and only lanes that all may send do send.
    if (!__all_sync(0xffffffffu, destination.row != nullptr)) continue;
    if (p.use_logfmt) {
      encode_row(destination, p.hidden);
    } else {
      copy_row(destination, p.hidden / 8, lane, 32);
    }
    __syncwarp();
    if (lane == 0) store_release_system(destination.flag, epoch);
  }
}

// Few rows: a whole block shares each, so that no single warp copies 14 KB alone.
__device__ inline void send_rows_by_block(const CombineParams& p, const int* begins,
                                          Destination& shared, uint64_t epoch,
                                          const Timing& timing) {
  const int num_rows = begins[p.experts_per_rank];
  for (int row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (threadIdx.x == 0) shared = resolve_row(p, begins, row, epoch, timing);
    __syncthreads();
    const Destination destination = shared;
    if (destination.row != nullptr) {
      copy_row(destination, p.hidden / 8, threadIdx.x, blockDim.x);
    }
    __syncthreads();
    if (threadIdx.x == 0 && destination.row != nullptr) {
      store_release_system(destination.flag, epoch);
    }
  }
}

__device__ inline void combine_send(const CombineParams& p, int* begins, Destination& shared,
                                    uint64_t epoch, const Timing& timing) {
  load_row_begins(p, begins);
  __syncthreads();
  if (begins[p.experts_per_rank] <= 2 * static_cast<int>(gridDim.x) && !p.use_logfmt) {
    send_rows_by_block(p, begins, shared, epoch, timing);
  } else {
    send_rows_by_warp(p, begins, epoch, timing);
  }
}

}  // namespace ep_runtime
