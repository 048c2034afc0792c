// Dispatch, send phase. One block takes one token at a time: it loads the row once, quantises it
// in registers and stores it once to every rank that holds one of the token's experts. Blocks from
// the end of the grid, which have no token when tokens are few, count what each rank will receive.
//
// A row's place is the number of earlier rows that go to the same place, counted from topk_idx
// itself: no atomics across blocks, no grid barrier, and the same order on every run.
#pragma once

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
  uint32_t selection[kMaxTopk];  // of the token at hand
  int index[kMaxTopk];           // earlier rows for the same expert
  int slot[kMaxTopk];            // earlier rows for the same rank
  RowTarget target[kMaxTopk];
  int num_targets;
  int rows;
  int may_send;
};

// A selection in one word: rank << 16 | global expert, or kNothing.
__device__ __forceinline__ int expert_of(uint32_t selection) { return selection & 0xffffu; }
__device__ __forceinline__ int rank_of(uint32_t selection) { return selection >> 16; }

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

// Every block reads the whole of topk_idx, once and in parallel. `table` is null when it does not
// fit; then selections are read where they are needed.
__device__ __forceinline__ void stage_selections(const DispatchParams& p, uint32_t* table) {
  if (table == nullptr) return;
  for (int i = threadIdx.x; i < p.num_tokens * p.num_topk; i += blockDim.x) {
    table[i] = read_selection(p, i);
  }
}

__device__ __forceinline__ uint32_t selection_at(const DispatchParams& p, const uint32_t* table,
                                                 int entry) {
  return table != nullptr ? table[entry] : read_selection(p, entry);
}

__device__ __forceinline__ bool may_send_to(const DispatchParams& p, const LaunchShared& launch,
                                            int rank) {
  return wait_slot_free(p.context, p.layout, launch, Kind::kDispatch, rank, Phase::kDispatchSend);
}

// How many rows of earlier tokens precede this token's, per expert and per destination rank.
__device__ __forceinline__ void count_earlier(const DispatchParams& p, DispatchSendShared& shared,
                                              const uint32_t* table, int token) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % 32;
  for (int first = threadIdx.x - lane; first < token; first += blockDim.x) {
    const int earlier = first + lane;
    uint32_t same_rank = 0;
    for (int j = 0; j < p.num_topk; j += kBatch) {
      uint32_t batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool valid = earlier < token && j + i < p.num_topk;
        batch[i] = valid ? selection_at(p, table, earlier * p.num_topk + j + i) : kNothing;
      }
      for (int k = 0; k < p.num_topk; ++k) {
        const uint32_t own = shared.selection[k];
        if (own == kNothing) continue;
        int same_expert = 0;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          same_expert += batch[i] == own;
          same_rank |= static_cast<uint32_t>(rank_of(batch[i]) == rank_of(own)) << k;
        }
        if (same_expert != 0) atomicAdd(&shared.index[k], same_expert);
      }
    }
    for (int k = 0; k < p.num_topk; ++k) {
      const uint32_t votes = __ballot_sync(0xffffffffu, (same_rank >> k) & 1u);
      if (lane == 0 && votes != 0) atomicAdd(&shared.slot[k], __popc(votes));
    }
  }
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

// Lane k of the first warp writes the header entry of selection k and, for the first selection of
// a destination, the header itself.
__device__ __forceinline__ void address_rows(const DispatchParams& p, DispatchSendShared& shared,
                                             const LaunchShared& launch, int token) {
  const int k = threadIdx.x;
  const uint32_t own = k < p.num_topk ? shared.selection[k] : kNothing;
  const int rank = rank_of(own);
  int same_rank_before = 0;
  int same_rank = 0;
  int same_expert_before = 0;
  for (int j = 0; own != kNothing && j < p.num_topk; ++j) {
    const uint32_t other = shared.selection[j];
    if (other == kNothing || rank_of(other) != rank) continue;
    ++same_rank;
    same_rank_before += j < k;
    same_expert_before += j < k && other == own;
  }
  const bool usable = own != kNothing && may_send_to(p, launch, rank);
  RowTarget target = {};
  if (usable) {
    const int local_expert = expert_of(own) - rank * p.experts_per_rank;
    target = row_target(p, rank, shared.slot[k], local_expert, slot_of(launch.epoch));
    const int index = shared.index[k] + same_expert_before;
    // An entry without an expert is skipped by the receiver.
    uint64_t entry = 0xffffu;
    if (index < p.max_tokens) {
      entry = static_cast<uint64_t>(local_expert) | static_cast<uint64_t>(k) << 16 |
              static_cast<uint64_t>(index) << 32;
    } else {
      record_problem(p.context, Problem::kTooManyRows,
                     WaitSite{Phase::kDispatchSend, rank, expert_of(own), token}, 0);
    }
    word_at(target.row, p.layout.route_offset)[same_rank_before] = entry;
    if (same_rank_before == 0) {
      *reinterpret_cast<uint2*>(target.row + 8) =
          make_uint2(static_cast<uint32_t>(token), static_cast<uint32_t>(same_rank));
    }
  }
  const bool first = usable && same_rank_before == 0;
  const uint32_t firsts = __ballot_sync(0xffffffffu, first);
  if (first) shared.target[__popc(firsts & ((1u << k) - 1u))] = target;
  if (k == 0) shared.num_targets = __popc(firsts);
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
      for (int d = 0; d < shared.num_targets; ++d) {
        uint8_t* row = shared.target[d].row;
        store_stream(reinterpret_cast<uint4*>(row + p.layout.payload_offset) + chunk, packed);
        if (chunk % kThreadsPerScale == 0) {
          reinterpret_cast<float*>(row + p.layout.scales_offset)[chunk / kThreadsPerScale] =
              inverse;
        }
      }
    } else {
      for (int d = 0; d < shared.num_targets; ++d) {
        uint4* out =
            reinterpret_cast<uint4*>(shared.target[d].row + p.layout.payload_offset) + 2 * chunk;
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
  if (thread < shared.num_targets && shared.target[thread].put_rank < 0) {
    store_release_system(reinterpret_cast<uint64_t*>(shared.target[thread].row), epoch);
  }
  if constexpr (kMayPut) {
    const uint64_t payload =
        kFp8 ? p.hidden + p.hidden / kChannelsPerScale * sizeof(float) : uint64_t{2} * p.hidden;
    // Scales may end in the middle of a word; the row has room for the whole of it.
    const uint64_t bytes = (p.layout.payload_offset - kWordBytes + payload + 7) / 8 * 8;
    for (int d = thread / 32; d < shared.num_targets; d += blockDim.x / 32) {
      const RowTarget& target = shared.target[d];
      if (target.put_rank < 0) continue;
      const uint64_t at =
          p.layout.dispatch_row_at(slot_of(epoch), p.context.rank, target.put_index);
      put_row(
          p.context,
          {target.row + kWordBytes, at + kWordBytes, at, bytes, target.put_rank, target.put_expert},
          epoch);
    }
  }
}

template <bool kFp8>
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
    if (threadIdx.x < p.num_topk) {
      shared.selection[threadIdx.x] = selection_at(p, table, token * p.num_topk + threadIdx.x);
      shared.index[threadIdx.x] = 0;
      shared.slot[threadIdx.x] = 0;
    }
    __syncthreads();
    count_earlier(p, shared, table, token);
    __syncthreads();
    if (threadIdx.x < 32) address_rows(p, shared, launch, token);
    __syncthreads();
    store_row<kFp8>(p, shared, source, first, second);
    __syncthreads();
    publish_rows<kFp8>(p, shared, launch.epoch);
  }
}

// `histogram` has room for the experts of one rank.
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
    for (int token = threadIdx.x; token < p.num_tokens; token += blockDim.x) {
      bool any = false;
      for (int k = 0; k < p.num_topk; ++k) {
        const uint32_t selection = selection_at(p, table, token * p.num_topk + k);
        if (selection == kNothing || rank_of(selection) != peer) continue;
        atomicAdd(&histogram[expert_of(selection) - peer * p.experts_per_rank], 1);
        any = true;
      }
      if (any) atomicAdd(&shared.rows, 1);
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
