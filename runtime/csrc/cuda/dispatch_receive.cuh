// Dispatch, receive phase. Counts from all ranks give every row its final place; then each warp
// takes a row (or a part of one), waits for that row's own flag and copies it to the experts that
// selected it. Rows that have arrived are copied while others are still on the wire.
#pragma once

#include "combine_in_place.cuh"
#include "device/divide.cuh"
#include "device/protocol.cuh"
#include "device/quantize.cuh"
#include "device/scan.cuh"
#include "dispatch.hpp"

namespace ep_runtime {

__device__ __forceinline__ void add_wait(const DispatchParams& p, int source, int64_t since) {
  if (p.wait_stats == nullptr) return;
  atomicAdd(p.wait_stats + source, static_cast<unsigned long long>(clock64() - since));
}

// Every block learns all counts: `counts` [L, R], `rows` [R]. The last warps go first: the first
// ones may still publish the block's own row.
__device__ inline void receive_counts(const DispatchParams& p, const LaunchShared& launch,
                                      int* counts, int* rows) {
  const int num_ranks = p.context.num_ranks;
  const int per_rank = p.experts_per_rank + 1;
  const uint64_t epoch = launch.epoch;
  const uint64_t* words =
      word_at(p.context.local, p.layout.dispatch_count_at(slot_of(epoch), 0, 0));
  const auto arrived = [=](uint64_t word) { return has_tag(word, epoch); };
  for (int i = blockDim.x - 1 - threadIdx.x; i < num_ranks * per_rank; i += blockDim.x) {
    const int source = divide_small(i, per_rank);
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

// 16-byte words of a row's payload, and how many columns of scales it has: fewer.
template <bool kFp8>
__device__ __forceinline__ int words_of_row(const DispatchParams& p) {
  return p.hidden / (kFp8 ? 16 : 8);
}
template <bool kFp8>
__device__ __forceinline__ int scale_columns(const DispatchParams& p) {
  if (!kFp8) return 0;
  return p.hidden / (p.use_ue8m0 ? 4 * kChannelsPerScale : kChannelsPerScale);
}

// Where a lane's entry of a row goes. What a warp writes there is addressed from these two numbers
// alone: each store of a row takes few instructions, and there are many.
struct Place {
  int row;         // of [L * R*M]; -1 in lanes without an entry
  uint32_t scale;  // index of the first scale; the next ones are R*M further each
};

// What a lane holds of a row at once: words `first`, `first + stride`, ... and the scales of the
// same numbers.
struct RowPass {
  static constexpr int kWords = 4;
  uint4 words[kWords];
  uint32_t scales[kWords];
};

template <bool kFp8>
__device__ __forceinline__ void load_pass(const DispatchParams& p, const uint8_t* row, int first,
                                          int stride, RowPass& pass) {
  const uint4* payload = reinterpret_cast<const uint4*>(row + p.layout.payload_offset);
  const uint8_t* inverses = row + p.layout.scales_offset;
#pragma unroll
  for (int i = 0; i < RowPass::kWords; ++i) {
    const int word = first + i * stride;
    if (word < words_of_row<kFp8>(p)) pass.words[i] = load_stream(payload + word);
    if (word < scale_columns<kFp8>(p)) {
      pass.scales[i] = p.use_ue8m0 ? pack_ue8m0(reinterpret_cast<const float4*>(inverses)[word])
                                   : reinterpret_cast<const uint32_t*>(inverses)[word];
    }
  }
}

// Scales go to token-contiguous columns, as grouped GEMMs want them.
template <bool kFp8>
__device__ __forceinline__ void store_pass(const DispatchParams& p, const Place& place,
                                           int num_places, int first, int stride,
                                           const RowPass& pass) {
  const int rows_per_expert = p.context.num_ranks * p.max_tokens;
  const int words = words_of_row<kFp8>(p);
  const int columns = scale_columns<kFp8>(p);
  uint8_t* rows = p.recv_x + static_cast<int64_t>(first) * sizeof(uint4);
  asm("" : "+l"(rows));  // stays in registers: else each store begins with a load of p.recv_x
#pragma unroll 2
  for (int l = 0; l < num_places; ++l) {
    const int place_row = __shfl_sync(0xffffffffu, place.row, l);
    uint8_t* out = rows + static_cast<int64_t>(place_row) * (words * int{sizeof(uint4)});
#pragma unroll
    for (int i = 0; i < RowPass::kWords; ++i) {
      if (place_row >= 0 && first + i * stride < words) {
        store_stream(reinterpret_cast<uint4*>(out) + i * stride, pass.words[i]);
      }
    }
  }
  if (first - static_cast<int>(threadIdx.x % 32) >= columns) return;
  uint32_t* const scales =
      static_cast<uint32_t*>(p.scales) + static_cast<int64_t>(first) * rows_per_expert;
#pragma unroll 1
  for (int l = 0; l < num_places; ++l) {
    const int place_row = __shfl_sync(0xffffffffu, place.row, l);
    const uint32_t place_scale = __shfl_sync(0xffffffffu, place.scale, l);
#pragma unroll
    for (int i = 0; i < RowPass::kWords; ++i) {
      if (place_row < 0 || first + i * stride >= columns) break;
      scales[place_scale + static_cast<int64_t>(i * stride) * rows_per_expert] = pass.scales[i];
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
  // One trip to memory for all there is of the row. The entry is read beside the count that says
  // whether it is one: rows have room for all lanes.
  const uint2 head = *reinterpret_cast<const uint2*>(row + 8);
  const uint64_t entry = lane < p.layout.topk_capacity
                             ? reinterpret_cast<const uint64_t*>(row + p.layout.route_offset)[lane]
                             : 0xffffu;
  const int stride = 32 * num_parts;
  int first = part * 32 + lane;
  RowPass pass;
  load_pass<kFp8>(p, row, first, stride, pass);
  const int num_places = static_cast<int>(head.y);
  const int expert = static_cast<int>(entry & 0xffffu);
  Place place = {-1, 0};
  if (lane < num_places && expert != 0xffff) {
    const int in_expert =
        begins[expert * p.context.num_ranks + source] + static_cast<int>(entry >> 32);
    const int at = expert * rows_per_expert + in_expert;
    // 32 bits: so many scales belong to 500 GB of rows.
    place = {at,
             static_cast<uint32_t>(expert * scale_columns<kFp8>(p)) * rows_per_expert + in_expert};
    if (part == 0) {
      p.src_info[at] = static_cast<int>(head.x);
      // The combine needs the source rank and the place in the top-k row to answer.
      const int k = static_cast<int>((entry >> 16) & 0xffu);
      p.src_info[rows_of_experts(p.num_experts, p.max_tokens) + at] = source << 8 | k;
      if (source == p.context.rank) {
        own_places(p)[own_place_at(p, static_cast<int>(head.x), k)] = at;
      }
    }
  }
  while (true) {
    store_pass<kFp8>(p, place, num_places, first, stride, pass);
    first += RowPass::kWords * stride;
    if (first - lane >= words_of_row<kFp8>(p)) break;
    load_pass<kFp8>(p, row, first, stride, pass);
  }
}

template <bool kFp8>
__device__ void receive_rows(const DispatchParams& p, const LaunchShared& launch, const int* begins,
                             const int* row_begins) {
  const int num_warps = static_cast<int>(gridDim.x * (blockDim.x / 32));
  const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  const int num_rows = row_begins[p.context.num_ranks];
  if (num_rows == 0) return;
  const int warps_of_words = (words_of_row<kFp8>(p) + 31) / 32;
  const int num_parts = max(1, min(divide_small(num_warps, num_rows), warps_of_words));
  for (int unit = warp; unit < num_rows * num_parts; unit += num_warps) {
    // Rows have parts only where they are fewer than warps.
    const int row = num_parts > 1 ? divide_small(unit, num_parts) : unit;
    const int source = find_segment(row_begins, p.context.num_ranks, row);
    receive_row<kFp8>(p, launch, begins, source, row - row_begins[source], unit - row * num_parts,
                      num_parts);
  }
}

}  // namespace ep_runtime
