// Dispatch, receive phase. Counts from all ranks give every row its final place; then each warp
// takes a row (or a part of one), waits for that row's own flag and copies it to the experts that
// selected it. Rows that have arrived are copied while others are still on the wire.
#pragma once

#include "combine_in_place.cuh"
#include "device/protocol.cuh"
#include "device/quantize.cuh"
#include "device/scan.cuh"
#include "dispatch.hpp"

namespace ep_runtime {

__device__ __forceinline__ void add_wait(const DispatchParams& p, int source, int64_t since) {
  if (p.wait_stats == nullptr) return;
  atomicAdd(p.wait_stats + source, static_cast<unsigned long long>(clock64() - since));
}

// Every block learns all counts: `counts` [L, R], `rows` [R].
__device__ inline void receive_counts(const DispatchParams& p, const LaunchShared& launch,
                                      int* counts, int* rows) {
  const int num_ranks = p.context.num_ranks;
  const int per_rank = p.experts_per_rank + 1;
  const uint64_t epoch = launch.epoch;
  const uint64_t* words =
      word_at(p.context.local, p.layout.dispatch_count_at(slot_of(epoch), 0, 0));
  const auto arrived = [=](uint64_t word) { return has_tag(word, epoch); };
  for (int i = threadIdx.x; i < num_ranks * per_rank; i += blockDim.x) {
    const int source = i / per_rank;
    const int expert = i - source * per_rank;
    const bool is_count = expert < p.experts_per_rank;
    int value = 0;
    if (!is_masked(p.context, source)) {
      const int64_t since = clock64();
      uint64_t word;
      const WaitSite site{Phase::kDispatchReceive, source,
                          is_count ? p.context.rank * p.experts_per_rank + expert : -1, -1};
      if (wait_word(p.context, words + i, launch.timing.start_ns, launch.timing.deadline_ns, site,
                    word, arrived)) {
        value = static_cast<int>(static_cast<uint32_t>(word));
      }
      if (is_count && blockIdx.x == 0) add_wait(p, source, since);
    }
    (is_count ? counts[expert * num_ranks + source] : rows[source]) = value;
  }
}

// Turns `counts` into first rows; the first block also hands out what the caller gets to see.
__device__ inline void place_ranks(const DispatchParams& p, int* counts) {
  const int num_ranks = p.context.num_ranks;
  for (int e = threadIdx.x; e < p.experts_per_rank; e += blockDim.x) {
    int begin = 0;
    for (int source = 0; source < num_ranks; ++source) {
      const int count = counts[e * num_ranks + source];
      counts[e * num_ranks + source] = begin;
      if (blockIdx.x == 0) {
        p.layout_range[e * num_ranks + source] = static_cast<int64_t>(begin) << 32 | count;
      }
      begin += count;
    }
    if (blockIdx.x != 0) continue;
    p.recv_count[e] = begin;
    if (p.cumulative_stats != nullptr) atomicAdd(p.cumulative_stats + e, begin);
  }
}

// Where lane l's entry of a row goes; `row` is -1 in lanes without one.
struct Place {
  int expert;
  int row;  // among the rows of that expert
};

// Copies part `part` of `num_parts` of one arrived row, and its scales, to all its places. Scales
// go to token-contiguous columns, as grouped GEMMs want them.
template <bool kFp8>
__device__ __forceinline__ void scatter_row(const DispatchParams& p, const uint8_t* row,
                                            const Place& place, int num_places, int part,
                                            int num_parts) {
  const int lane = threadIdx.x % 32;
  const int stride = num_parts * 32;
  const int rows_per_expert = p.context.num_ranks * p.max_tokens;
  const uint4* payload = reinterpret_cast<const uint4*>(row + p.layout.payload_offset);
  const uint8_t* inverses = row + p.layout.scales_offset;
  const int words = p.hidden / (kFp8 ? 16 : 8);
  const int columns =
      !kFp8 ? 0 : p.hidden / (p.use_ue8m0 ? 4 * kChannelsPerScale : kChannelsPerScale);
  constexpr int kUnroll = 4;
  // There are fewer scales than words, so one pass over the words covers them.
  for (int first = part * 32; first < words; first += stride * kUnroll) {
    uint4 values[kUnroll];
    uint32_t scales[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int word = first + i * stride + lane;
      if (word < words) values[i] = load_stream(payload + word);
      if (word < columns) {
        scales[i] = p.use_ue8m0 ? pack_ue8m0(reinterpret_cast<const float4*>(inverses)[word])
                                : reinterpret_cast<const uint32_t*>(inverses)[word];
      }
    }
    for (int l = 0; l < num_places; ++l) {
      const int target_row = __shfl_sync(0xffffffffu, place.row, l);
      const int expert = __shfl_sync(0xffffffffu, place.expert, l);
      if (target_row < 0) continue;
      uint4* out = reinterpret_cast<uint4*>(p.recv_x) +
                   (static_cast<int64_t>(expert) * rows_per_expert + target_row) * words;
      uint32_t* out_scales = static_cast<uint32_t*>(p.scales) +
                             static_cast<int64_t>(expert) * columns * rows_per_expert + target_row;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int word = first + i * stride + lane;
        if (word < words) store_stream(out + word, values[i]);
        if (word < columns) out_scales[static_cast<int64_t>(word) * rows_per_expert] = scales[i];
      }
    }
  }
}

template <bool kFp8>
__device__ inline void receive_row(const DispatchParams& p, const LaunchShared& launch,
                                   const int* begins, int source, int row_index, int part,
                                   int num_parts) {
  const int lane = threadIdx.x % 32;
  const int rows_per_expert = p.context.num_ranks * p.max_tokens;
  const uint64_t epoch = launch.epoch;
  const uint8_t* row =
      p.context.local + p.layout.dispatch_row_at(slot_of(epoch), source, row_index);
  int arrived = 0;
  if (lane == 0) {
    const int64_t since = clock64();
    uint64_t word;
    arrived = wait_word(p.context, reinterpret_cast<const uint64_t*>(row), launch.timing.start_ns,
                        launch.timing.deadline_ns,
                        WaitSite{Phase::kDispatchReceive, source, -1, row_index}, word,
                        [=](uint64_t value) { return value == epoch; });
    if (part == 0) add_wait(p, source, since);
  }
  if (!__shfl_sync(0xffffffffu, arrived, 0)) return;
  __syncwarp();  // a shuffle passes values, not lane 0's acquire
  // The entry is read beside the count that says whether it is one: rows have room for all lanes.
  const uint2 head = *reinterpret_cast<const uint2*>(row + 8);
  const uint64_t entry = lane < p.layout.topk_capacity
                             ? reinterpret_cast<const uint64_t*>(row + p.layout.route_offset)[lane]
                             : 0xffffu;
  const int num_places = static_cast<int>(head.y);
  const int expert = static_cast<int>(entry & 0xffffu);
  Place place = {expert, -1};
  if (lane < num_places && expert != 0xffff) {
    place.row = begins[expert * p.context.num_ranks + source] + static_cast<int>(entry >> 32);
    if (part == 0) {
      const int at = expert * rows_per_expert + place.row;
      p.src_info[at] = static_cast<int>(head.x);
      // The combine needs the source rank and the place in the top-k row to answer.
      const int k = static_cast<int>((entry >> 16) & 0xffu);
      p.src_info[rows_of_experts(p.num_experts, p.max_tokens) + at] = source << 8 | k;
      if (source == p.context.rank) {
        own_places(p)[own_place_at(p, static_cast<int>(head.x), k)] = at;
      }
    }
  }
  scatter_row<kFp8>(p, row, place, num_places, part, num_parts);
}

template <bool kFp8>
__device__ void receive_rows(const DispatchParams& p, const LaunchShared& launch, const int* begins,
                             const int* row_begins) {
  const int num_warps = static_cast<int>(gridDim.x * (blockDim.x / 32));
  const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  const int num_rows = row_begins[p.context.num_ranks];
  if (num_rows == 0) return;
  const int warps_of_words = (p.hidden / (kFp8 ? 16 : 8) + 31) / 32;
  const int num_parts = max(1, min(num_warps / num_rows, warps_of_words));
  for (int unit = warp; unit < num_rows * num_parts; unit += num_warps) {
    const int row = unit / num_parts;
    const int source = find_segment(row_begins, p.context.num_ranks, row);
    receive_row<kFp8>(p, launch, begins, source, row - row_begins[source], unit % num_parts,
                      num_parts);
  }
}

}  // namespace ep_runtime
