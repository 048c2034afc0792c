// Combine, send phase. Each expert row goes back to the slot (token, place in the top-k row) of
// the rank it came from, and is published by a flag of its own: the receiver can sum a token as
// soon as that token's rows are there.
#pragma once

#include "combine_in_place.cuh"
#include "device/logfmt.cuh"
#include "device/protocol.cuh"
#include "device/scan.cuh"

namespace ep_runtime {

struct Destination {
  const uint8_t* source;
  uint8_t* row;  // null: nothing to copy
  uint64_t* flag;
  RowPut put;  // where `flag` is null
};

// The rows to send, in shared memory: the first of each expert, begins[L] being the total; and
// which of an expert's rows are read in place instead.
struct SentRows {
  int* begins;     // [L + 1]
  int* own_begin;  // [L]
  int* own_count;  // [L]
};

__device__ __forceinline__ int begin_of(int64_t range) { return static_cast<int>(range >> 32); }
__device__ __forceinline__ int count_of(int64_t range) {
  return static_cast<int>(range & 0xffffffff);
}

// One warp. Nothing is stored between its loads, which would make them wait for each other.
template <bool kLogfmt>
__device__ __forceinline__ void load_sent_rows(const CombineParams& p, const SentRows& sent) {
  const int num_ranks = p.context.num_ranks;
  const bool skip_own = in_place<kLogfmt>(p, p.context.rank);
  const auto rows_of = [=](int expert) {
    const int64_t* ranges = p.layout_range + expert * num_ranks;
    const int64_t last = __ldg(ranges + num_ranks - 1);
    const int64_t own = skip_own ? __ldg(ranges + p.context.rank) : 0;
    return begin_of(last) + count_of(last) - count_of(own);
  };
  if (p.experts_per_rank <= 32) {
    warp_exclusive_sum<1>(sent.begins, p.experts_per_rank, rows_of);
  } else {
    warp_exclusive_sum<8>(sent.begins, p.experts_per_rank, rows_of);
  }
}

// Another warp.
template <bool kLogfmt>
__device__ __forceinline__ void load_own_rows(const CombineParams& p, const SentRows& sent) {
  const bool skip_own = in_place<kLogfmt>(p, p.context.rank);
  for (int expert = threadIdx.x % 32; expert < p.experts_per_rank; expert += 32) {
    const int64_t own =
        skip_own ? __ldg(p.layout_range + expert * p.context.num_ranks + p.context.rank) : 0;
    sent.own_begin[expert] = begin_of(own);
    sent.own_count[expert] = count_of(own);
  }
}

// Rows that a slot of the mirror has room for.
__device__ __forceinline__ int mirror_capacity(const CombineParams& p) {
  return p.max_tokens * static_cast<int>(p.layout.topk_capacity);
}

// Rows that the mirror holds at once; a warp that sends row i also sends row i + mirror_rows().
__device__ __forceinline__ int mirror_rows(const CombineParams& p, int num_warps) {
  return mirror_capacity(p) / num_warps * num_warps;
}

// One thread resolves where row number `row` of those to send goes, and waits until it may. What
// can only be put is built in the mirror's row `mirror_row`.
__device__ inline Destination resolve_row(const CombineParams& p, const LaunchShared& launch,
                                          const SentRows& sent, int row, int mirror_row) {
  const int expert = find_segment(sent.begins, p.experts_per_rank, row);
  int in_expert = row - sent.begins[expert];
  if (in_expert >= sent.own_begin[expert]) in_expert += sent.own_count[expert];
  const int64_t place =
      static_cast<int64_t>(expert) * p.context.num_ranks * p.max_tokens + in_expert;
  const int token = p.src_info[place];
  const int back = p.src_info[rows_of_experts(p.num_experts, p.max_tokens) + place];
  const int rank = back >> 8;
  if (is_masked(p.context, rank) ||
      !wait_slot_free(p.context, p.layout, launch, Kind::kCombine, rank, Phase::kCombineSend)) {
    return {};
  }
  const int slot = slot_of(launch.epoch);
  const uint8_t* source = row_in_place(p, place);
  const uint64_t row_at = p.layout.combine_row_at(slot, token, back & 0xff);
  const uint64_t flag_at = p.layout.combine_flag_at(slot, token, back & 0xff);
  if constexpr (kMayPut) {
    if (only_by_put(p.context, rank)) {
      uint8_t* mirror = p.context.puts.mirror + p.layout.combine_row_at(slot, 0, 0) +
                        mirror_row * p.layout.combine_row_stride;
      return {
          source,
          mirror,
          nullptr,
          {mirror, row_at, flag_at, 2 * uint64_t(p.hidden) + kCombineTrailerBytes, rank, expert}};
    }
  }
  uint8_t* base = peer_base(p.context, rank);
  return {source, base + row_at, word_at(base, flag_at), {}};
}

// All lanes of one warp, which have written the row or seen it written.
__device__ __forceinline__ void publish_row(const CombineParams& p, const Destination& destination,
                                            uint64_t epoch) {
  if constexpr (kMayPut) {
    if (destination.flag == nullptr) {
      put_row(p.context, destination.put, epoch);
      return;
    }
  }
  if (threadIdx.x % 32 == 0) store_release_system(destination.flag, epoch);
}

// The mirror's rows were put to any rank two operations ago: all of them must have read theirs.
__device__ __forceinline__ void wait_mirror_free(const CombineParams& p,
                                                 const LaunchShared& launch) {
  for (int rank = threadIdx.x; rank < p.context.num_ranks; rank += blockDim.x) {
    if (!only_by_put(p.context, rank) || is_masked(p.context, rank)) continue;
    wait_slot_free(p.context, p.layout, launch, Kind::kCombine, rank, Phase::kCombineSend);
  }
  __syncthreads();
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
template <bool kLogfmt>
__device__ inline void send_rows_by_warp(const CombineParams& p, const LaunchShared& launch,
                                         const SentRows& sent) {
  const int lane = threadIdx.x % 32;
  int num_warps = static_cast<int>(gridDim.x * (blockDim.x / 32));
  const bool mirrored = kMayPut && p.context.puts.mirror != nullptr;
  if (mirrored) num_warps = min(num_warps, mirror_capacity(p));
  const int ring = mirrored ? mirror_rows(p, num_warps) : 1;
  const int num_rows = sent.begins[p.experts_per_rank];
  const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  for (int row = warp; warp < num_warps && row < num_rows; row += num_warps) {
    if constexpr (kMayPut) {
      if (mirrored && row >= ring && row % ring < num_warps) {
        if (lane == 0) drain_puts();  // this warp's earlier rows leave the mirror
        __syncwarp();
      }
    }
    const Destination destination = resolve_row(p, launch, sent, row, row % ring);
    // Lanes resolve for themselves, and only lanes that all may send do send.
    if (!__all_sync(0xffffffffu, destination.row != nullptr)) continue;
    if constexpr (kLogfmt) {
      encode_row(destination, p.hidden);
    } else {
      copy_row(destination, p.hidden / 8, lane, 32);
    }
    __syncwarp();
    publish_row(p, destination, launch.epoch);
  }
}

// Few rows: a whole block shares each, so that no single warp copies 14 KB alone.
__device__ inline void send_rows_by_block(const CombineParams& p, const LaunchShared& launch,
                                          const SentRows& sent, Destination& shared) {
  const int num_rows = sent.begins[p.experts_per_rank];
  for (int row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (threadIdx.x == 0) shared = resolve_row(p, launch, sent, row, row);
    __syncthreads();
    if (shared.row != nullptr) {
      copy_row(shared, p.hidden / 8, threadIdx.x, blockDim.x);
    }
    __syncthreads();
    if (threadIdx.x < 32 && shared.row != nullptr) publish_row(p, shared, launch.epoch);
    __syncthreads();
  }
}

template <bool kLogfmt>
__device__ inline void combine_send(const CombineParams& p, const LaunchShared& launch,
                                    const SentRows& sent, Destination& shared) {
  int few = 2 * static_cast<int>(gridDim.x);
  if constexpr (kMayPut) {
    if (p.context.puts.mirror != nullptr) {
      wait_mirror_free(p, launch);
      few = min(few, mirror_capacity(p));
    }
  }
  if constexpr (!kLogfmt) {
    if (sent.begins[p.experts_per_rank] <= few) {
      send_rows_by_block(p, launch, sent, shared);
      return;
    }
  }
  send_rows_by_warp<kLogfmt>(p, launch, sent);
}

}  // namespace ep_runtime
