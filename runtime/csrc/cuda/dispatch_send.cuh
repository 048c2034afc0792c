// Dispatch, send phase. One block takes one token at a time: it loads the row once, quantises it
// in registers and stores it once to every rank that holds one of the token's experts. Blocks from
// the end of the grid, which have no token when tokens are few, count what each rank will receive.
//
// A row's place is the number of earlier rows that go to the same place, counted from topk_idx
// itself: no atomics across blocks, no grid barrier, and the same order on every run.
#pragma once

#include "combine_in_place.cuh"
#include "device/protocol.cuh"
#include "device/quantize.cuh"
#include "dispatch.hpp"

namespace ep_runtime {

constexpr uint32_t kNothing = 0xffffffffu;

// Where one copy of the token at hand is written; `put_rank` is -1 where that is the peer itself.
struct RowTarget {
  uint8_t* row;
  int put_rank;
  int put_index;
  int put_expert;
};

struct DispatchSendShared {
  RowTarget target[kMaxTopk];  // by selection; without a row where an earlier one has it
  int rows;
  int may_send;
};

// A selection in one word: whether it is its token's first for that rank, the rank, the global
// expert; or kNothing.
constexpr uint32_t kFirstOfRank = 1u << 31;
static_assert(kMaxRanks < 0x7fff, "a rank must not look like kNothing's");

__device__ __forceinline__ int expert_of(uint32_t selection) { return selection & 0xffffu; }
__device__ __forceinline__ int rank_of(uint32_t selection) { return selection >> 16 & 0x7fffu; }
__device__ __forceinline__ bool is_first_of_rank(uint32_t selection) {
  return selection != kNothing && (selection & kFirstOfRank) != 0;
}

// Without its first bit.
__device__ __forceinline__ uint32_t read_selection(const DispatchParams& p, int entry) {
  const int64_t expert = p.topk_idx[entry];
  if (expert < 0 || expert >= p.num_experts) {
    if (expert != -1) {
      record_problem(p.context, Problem::kExpertOutOfRange,
                     WaitSite{Phase::kDispatchSend, p.context.rank, static_cast<int>(expert),
                              entry / p.num_topk},
                     0);
    }
    return kNothing;
  }
  const uint32_t rank = static_cast<uint32_t>(expert) / p.experts_per_rank;
  if (is_masked(p.context, rank)) return kNothing;
  return rank << 16 | static_cast<uint32_t>(expert);
}

// Every block reads the whole of topk_idx, once and in parallel.
__device__ __forceinline__ void stage_selections(const DispatchParams& p, uint32_t* table) {
  const int lane = threadIdx.x % 32;
  const int tokens_at_once = 32 / p.num_topk;  // a warp sees all of a token's selections
  const int stride = static_cast<int>(blockDim.x / 32) * tokens_at_once;
  const int in_group = lane / p.num_topk;
  for (int first = threadIdx.x / 32 * tokens_at_once; first < p.num_tokens; first += stride) {
    const int token = first + in_group;
    const bool valid = in_group < tokens_at_once && token < p.num_tokens;
    const int entry = first * p.num_topk + lane;
    const uint32_t selection = valid ? read_selection(p, entry) : kNothing;
    const uint32_t same = __match_any_sync(0xffffffffu, in_group << 16 | rank_of(selection));
    if (!valid) continue;
    const bool is_first = selection != kNothing && __ffs(same) - 1 == lane;
    table[entry] = is_first ? selection | kFirstOfRank : selection;
  }
}

// Where topk_idx does not fit into shared memory: selections are read where they are needed.
__device__ __noinline__ inline uint32_t read_marked_selection(const DispatchParams& p, int entry) {
  const uint32_t selection = read_selection(p, entry);
  if (selection == kNothing) return kNothing;
  for (int other = entry / p.num_topk * p.num_topk; other < entry; ++other) {
    if (rank_of(read_selection(p, other)) == rank_of(selection)) return selection;
  }
  return selection | kFirstOfRank;
}

// All code for the other case stays out of a kernel that has the table: what runs once is paid for
// by fetching its instructions.
template <bool kStaged>
__device__ __forceinline__ uint32_t selection_at(const DispatchParams& p, const uint32_t* table,
                                                 int entry) {
  if constexpr (kStaged) return table[entry];
  return read_marked_selection(p, entry);
}

__device__ __forceinline__ bool may_send_to(const DispatchParams& p, const LaunchShared& launch,
                                            int rank) {
  return wait_slot_free(p.context, p.layout, launch, Kind::kDispatch, rank, Phase::kDispatchSend);
}

// The mirror of a peer's memory is ordered by destination where the peer's is by source.
__device__ __forceinline__ RowTarget row_target(const DispatchParams& p, int rank, int index,
                                                int local_expert, int slot) {
  if constexpr (kMayPut) {
    if (only_by_put(p.context, rank)) {
      return {p.context.puts.mirror + p.layout.dispatch_row_at(slot, rank, index), rank, index,
              local_expert};
    }
  }
  return {peer_base(p.context, rank) + p.layout.dispatch_row_at(slot, p.context.rank, index), -1, 0,
          0};
}

// What precedes a selection: rows for its expert, rows for its rank.
struct Earlier {
  int same_expert;
  int same_rank;
};

// All lanes of a warp; `own` is the same in all of them.
template <bool kStaged>
__device__ __forceinline__ Earlier count_earlier(const DispatchParams& p, const uint32_t* table,
                                                 uint32_t own, int end) {
  Earlier earlier = {0, 0};
#pragma unroll 4
  for (int entry = threadIdx.x % 32; entry < end; entry += 32) {
    const uint32_t other = selection_at<kStaged>(p, table, entry);
    earlier.same_expert += ((other ^ own) & ~kFirstOfRank) == 0;
    earlier.same_rank += is_first_of_rank(other) && rank_of(other) == rank_of(own);
  }
  return {static_cast<int>(__reduce_add_sync(0xffffffffu, earlier.same_expert)),
          static_cast<int>(__reduce_add_sync(0xffffffffu, earlier.same_rank))};
}

// One warp finds where selection k of the token goes, and writes its entry in the row's header
// and, for the first selection of a rank, the header itself.
template <bool kStaged>
__device__ __forceinline__ void address_row(const DispatchParams& p, DispatchSendShared& shared,
                                            const LaunchShared& launch, const uint32_t* table,
                                            int token, int k) {
  const int lane = threadIdx.x % 32;
  const int begin = token * p.num_topk;
  const uint32_t beside =
      lane < p.num_topk ? selection_at<kStaged>(p, table, begin + lane) : kNothing;
  const uint32_t own = __shfl_sync(0xffffffffu, beside, k);
  RowTarget target = {};
  bool own_row = false;  // in lane 0; the receive phase will say where it is
  if (own != kNothing) {
    const int rank = rank_of(own);
    const Earlier earlier = count_earlier<kStaged>(p, table, own, begin);
    const uint32_t ranks =
        __ballot_sync(0xffffffffu, beside != kNothing && rank_of(beside) == rank);
    const uint32_t experts = __ballot_sync(0xffffffffu, ((beside ^ own) & ~kFirstOfRank) == 0);
    const uint32_t before = (1u << k) - 1u;
    if (lane == 0 && may_send_to(p, launch, rank)) {
      const int local_expert = expert_of(own) - rank * p.experts_per_rank;
      target = row_target(p, rank, earlier.same_rank, local_expert, slot_of(launch.epoch));
      const int index = earlier.same_expert + __popc(experts & before);
      // An entry without an expert is skipped by the receiver.
      uint64_t entry = 0xffffu;
      if (index < p.max_tokens) {
        own_row = rank == p.context.rank;
        entry = static_cast<uint64_t>(local_expert) | static_cast<uint64_t>(k) << 16 |
                static_cast<uint64_t>(index) << 32;
      } else {
        record_problem(p.context, Problem::kTooManyRows,
                       WaitSite{Phase::kDispatchSend, rank, expert_of(own), token}, 0);
      }
      const int place = __popc(ranks & before);
      word_at(target.row, p.layout.route_offset)[place] = entry;
      if (place == 0) {
        *reinterpret_cast<uint2*>(target.row + 8) =
            make_uint2(static_cast<uint32_t>(token), static_cast<uint32_t>(__popc(ranks)));
      } else {
        target.row = nullptr;
      }
    }
  }
  if (lane != 0) return;
  shared.target[k] = target;
  if (!own_row) own_places(p)[own_place_at(p, token, k)] = -1;
}

template <bool kFp8>
__device__ __forceinline__ void store_row(const DispatchParams& p, DispatchSendShared& shared,
                                          const uint4* source, uint4 first, uint4 second) {
  for (int chunk = threadIdx.x; chunk < p.hidden / kChannelsPerThread; chunk += blockDim.x) {
    if (chunk != static_cast<int>(threadIdx.x)) {
      first = load_stream(source + 2 * chunk);
      second = load_stream(source + 2 * chunk + 1);
    }
    if constexpr (kFp8) {
      uint4 packed;
      const float inverse = quantize_chunk(first, second, p.round_scale, packed);
      for (int k = 0; k < p.num_topk; ++k) {
        uint8_t* row = shared.target[k].row;
        if (row == nullptr) continue;
        store_stream(reinterpret_cast<uint4*>(row + p.layout.payload_offset) + chunk, packed);
        if (chunk % kThreadsPerScale == 0) {
          reinterpret_cast<float*>(row + p.layout.scales_offset)[chunk / kThreadsPerScale] =
              inverse;
        }
      }
    } else {
      for (int k = 0; k < p.num_topk; ++k) {
        uint8_t* row = shared.target[k].row;
        if (row == nullptr) continue;
        uint4* out = reinterpret_cast<uint4*>(row + p.layout.payload_offset) + 2 * chunk;
        store_stream(out, first);
        store_stream(out + 1, second);
      }
    }
  }
}

// The flag follows the row: a release store where the peer is mapped, else a put of both by a warp.
template <bool kFp8>
__device__ __forceinline__ void publish_rows(const DispatchParams& p,
                                             const DispatchSendShared& shared, uint64_t epoch) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < p.num_topk && shared.target[thread].row != nullptr &&
      shared.target[thread].put_rank < 0) {
    store_release_system(reinterpret_cast<uint64_t*>(shared.target[thread].row), epoch);
  }
  if constexpr (kMayPut) {
    const uint64_t payload =
        kFp8 ? p.hidden + p.hidden / kChannelsPerScale * sizeof(float) : uint64_t{2} * p.hidden;
    // Scales may end in the middle of a word; the row has room for the whole of it.
    const uint64_t bytes = (p.layout.payload_offset - kWordBytes + payload + 7) / 8 * 8;
    for (int k = thread / 32; k < p.num_topk; k += blockDim.x / 32) {
      const RowTarget& target = shared.target[k];
      if (target.row == nullptr || target.put_rank < 0) continue;
      const uint64_t at =
          p.layout.dispatch_row_at(slot_of(epoch), p.context.rank, target.put_index);
      put_row(
          p.context,
          {target.row + kWordBytes, at + kWordBytes, at, bytes, target.put_rank, target.put_expert},
          epoch);
    }
  }
}

template <bool kFp8, bool kStaged>
__device__ void send_rows(const DispatchParams& p, DispatchSendShared& shared,
                          const LaunchShared& launch, const uint32_t* table) {
  const int row_words = p.hidden / 8;  // 16-byte words of a BF16 row
  for (int token = blockIdx.x; token < p.num_tokens; token += gridDim.x) {
    const uint4* source = p.x + static_cast<int64_t>(token) * row_words;
    uint4 first = {};
    uint4 second = {};
    if (threadIdx.x < p.hidden / kChannelsPerThread) {
      first = load_stream(source + 2 * threadIdx.x);
      second = load_stream(source + 2 * threadIdx.x + 1);
    }
    for (int k = threadIdx.x / 32; k < p.num_topk; k += blockDim.x / 32) {
      address_row<kStaged>(p, shared, launch, table, token, k);
    }
    __syncthreads();
    store_row<kFp8>(p, shared, source, first, second);
    __syncthreads();
    publish_rows<kFp8>(p, shared, launch.epoch);
    if (token + static_cast<int>(gridDim.x) < p.num_tokens) __syncthreads();
  }
}

// `histogram` has room for the experts of one rank.
template <bool kStaged>
__device__ inline void send_counts(const DispatchParams& p, DispatchSendShared& shared,
                                   const LaunchShared& launch, const uint32_t* table,
                                   int* histogram) {
  const uint64_t epoch = launch.epoch;
  const int slot = slot_of(epoch);
  for (int peer = gridDim.x - 1 - blockIdx.x; peer < p.context.num_ranks; peer += gridDim.x) {
    for (int e = threadIdx.x; e < p.experts_per_rank; e += blockDim.x) histogram[e] = 0;
    if (threadIdx.x == 0) {
      shared.rows = 0;
      shared.may_send = !is_masked(p.context, peer) && may_send_to(p, launch, peer);
    }
    __syncthreads();
    for (int entry = threadIdx.x; entry < p.num_tokens * p.num_topk; entry += blockDim.x) {
      const uint32_t selection = selection_at<kStaged>(p, table, entry);
      if (selection == kNothing || rank_of(selection) != peer) continue;
      atomicAdd(&histogram[expert_of(selection) - peer * p.experts_per_rank], 1);
      if (is_first_of_rank(selection)) atomicAdd(&shared.rows, 1);
    }
    __syncthreads();
    if (shared.may_send) {
      const bool by_put = only_by_put(p.context, peer);
      uint64_t* words =
          by_put ? word_at(p.context.puts.mirror, p.layout.dispatch_count_at(slot, peer, 0))
                 : word_at(peer_base(p.context, peer),
                           p.layout.dispatch_count_at(slot, p.context.rank, 0));
      for (int e = threadIdx.x; e <= p.experts_per_rank; e += blockDim.x) {
        const int count = e < p.experts_per_rank ? min(histogram[e], p.max_tokens) : shared.rows;
        store_relaxed_system(words + e, tagged(epoch, count));
      }
      if constexpr (kMayPut) {
        __syncthreads();
        if (by_put && threadIdx.x < 32) {
          put_words(p.context, peer, p.layout.dispatch_count_at(slot, p.context.rank, 0),
                    reinterpret_cast<const uint8_t*>(words), (p.experts_per_rank + 1) * kWordBytes);
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace ep_runtime
