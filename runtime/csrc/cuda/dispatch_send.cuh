// Dispatch, send phase. One block takes one token at a time: it loads the row once, quantises it
// in registers and stores it once to every rank that holds one of the token's experts. A second
// group of threads counts, per destination rank, what that rank will receive.
//
// A row's place is the number of earlier rows that go to the same place, counted from topk_idx
// itself: no atomics across blocks, no grid barrier, and the same order on every run.
#pragma once

#include "device/protocol.cuh"
#include "device/quantize.cuh"
#include "dispatch.hpp"

namespace ep_runtime {

constexpr int kCountThreads = 128;
constexpr int kRowBarrier = 1;
constexpr int kCountBarrier = 2;

struct DispatchSendShared {
  int expert[kMaxTopk];  // global expert, -1 where nothing is sent
  int rank[kMaxTopk];
  int index[kMaxTopk];  // earlier rows for the same expert
  int slot[kMaxTopk];   // earlier rows for the same rank
  uint8_t* destination[kMaxTopk];
  int num_destinations;
  int rows;
  int may_send;
};

__device__ __forceinline__ int read_expert(const DispatchParams& p, int entry) {
  const int64_t expert = p.topk_idx[entry];
  return expert >= 0 && expert < p.num_experts ? static_cast<int>(expert) : -1;
}

__device__ __forceinline__ const uint64_t* dispatch_ack_word(const DispatchParams& p, int rank) {
  return word_at(p.context.local, p.layout.dispatch_ack_at(rank));
}

__device__ __forceinline__ void load_selection(const DispatchParams& p, DispatchSendShared& shared,
                                               int token) {
  const int k = threadIdx.x;
  if (k >= p.num_topk) return;
  int expert = read_expert(p, token * p.num_topk + k);
  if (expert < 0 && p.topk_idx[token * p.num_topk + k] != -1) {
    record_problem(p.context, Problem::kExpertOutOfRange,
                   WaitSite{Phase::kDispatchSend, p.context.rank,
                            static_cast<int>(p.topk_idx[token * p.num_topk + k]), token},
                   0);
  }
  int rank = expert < 0 ? -1 : expert / p.experts_per_rank;
  if (rank >= 0 && is_masked(p.context, rank)) expert = rank = -1;
  shared.expert[k] = expert;
  shared.rank[k] = rank;
  shared.index[k] = 0;
  shared.slot[k] = 0;
}

// How many rows of earlier tokens precede this token's, per expert and per destination rank.
__device__ __forceinline__ void count_earlier(const DispatchParams& p, DispatchSendShared& shared,
                                              int token) {
  const int lane = threadIdx.x % 32;
  for (int first = threadIdx.x - lane; first < token; first += p.row_threads) {
    uint32_t same_rank = 0;
    if (first + lane < token) {
      for (int j = 0; j < p.num_topk; ++j) {
        const int expert = read_expert(p, (first + lane) * p.num_topk + j);
        if (expert < 0) continue;
        const int rank = expert / p.experts_per_rank;
        for (int k = 0; k < p.num_topk; ++k) {
          if (shared.expert[k] == expert) atomicAdd(&shared.index[k], 1);
          same_rank |= static_cast<uint32_t>(shared.rank[k] == rank) << k;
        }
      }
    }
    for (int k = 0; k < p.num_topk; ++k) {
      const uint32_t votes = __ballot_sync(0xffffffffu, (same_rank >> k) & 1u);
      if (lane == 0 && votes != 0) atomicAdd(&shared.slot[k], __popc(votes));
    }
  }
}

// Lane k of the first warp writes the header entry of selection k and, for the first selection of
// a destination, the header itself.
__device__ __forceinline__ void address_rows(const DispatchParams& p, DispatchSendShared& shared,
                                             int token, uint64_t epoch, const Timing& timing) {
  const int k = threadIdx.x;
  const int rank = k < p.num_topk ? shared.rank[k] : -1;
  int same_rank_before = 0;
  int same_rank = 0;
  int same_expert_before = 0;
  for (int j = 0; rank >= 0 && j < p.num_topk; ++j) {
    same_rank += shared.rank[j] == rank;
    same_rank_before += j < k && shared.rank[j] == rank;
    same_expert_before += j < k && shared.expert[j] == shared.expert[k];
  }
  const bool usable = rank >= 0 && wait_slot_free(p.context, dispatch_ack_word(p, rank), rank,
                                                  epoch, timing, Phase::kDispatchSend);
  uint8_t* row = nullptr;
  if (usable) {
    row = p.context.peers[rank] +
          p.layout.dispatch_row_at(slot_of(epoch), p.context.rank, shared.slot[k]);
    const int index = shared.index[k] + same_expert_before;
    // An entry without an expert is skipped by the receiver.
    uint64_t entry = 0xffffu;
    if (index < p.max_tokens) {
      entry = static_cast<uint64_t>(shared.expert[k] - rank * p.experts_per_rank) |
              static_cast<uint64_t>(k) << 16 | static_cast<uint64_t>(index) << 32;
    } else {
      record_problem(p.context, Problem::kTooManyRows,
                     WaitSite{Phase::kDispatchSend, rank, shared.expert[k], token}, 0);
    }
    word_at(row, p.layout.route_offset)[same_rank_before] = entry;
    if (same_rank_before == 0) {
      *reinterpret_cast<uint2*>(row + 8) =
          make_uint2(static_cast<uint32_t>(token), static_cast<uint32_t>(same_rank));
    }
  }
  const bool first = usable && same_rank_before == 0;
  const uint32_t firsts = __ballot_sync(0xffffffffu, first);
  if (first) shared.destination[__popc(firsts & ((1u << k) - 1u))] = row;
  if (k == 0) shared.num_destinations = __popc(firsts);
}

template <bool kFp8>
__device__ __forceinline__ void store_row(const DispatchParams& p, DispatchSendShared& shared,
                                          const uint4* source, uint4 first, uint4 second) {
  for (int chunk = threadIdx.x; chunk < p.hidden / kChannelsPerThread; chunk += p.row_threads) {
    if (chunk != static_cast<int>(threadIdx.x)) {
      first = load_stream(source + 2 * chunk);
      second = load_stream(source + 2 * chunk + 1);
    }
    if constexpr (kFp8) {
      uint4 packed;
      const float inverse = quantize_chunk(first, second, p.round_scale, packed);
      for (int d = 0; d < shared.num_destinations; ++d) {
        uint8_t* row = shared.destination[d];
        store_stream(reinterpret_cast<uint4*>(row + p.layout.payload_offset) + chunk, packed);
        if (chunk % kThreadsPerScale == 0) {
          reinterpret_cast<float*>(row + p.layout.scales_offset)[chunk / kThreadsPerScale] =
              inverse;
        }
      }
    } else {
      for (int d = 0; d < shared.num_destinations; ++d) {
        uint4* out =
            reinterpret_cast<uint4*>(shared.destination[d] + p.layout.payload_offset) + 2 * chunk;
        store_stream(out, first);
        store_stream(out + 1, second);
      }
    }
  }
}

template <bool kFp8>
__device__ void send_rows(const DispatchParams& p, DispatchSendShared& shared, uint64_t epoch,
                          const Timing& timing) {
  const int row_words = p.hidden / 8;  // 16-byte words of a BF16 row
  for (int token = blockIdx.x; token < p.num_tokens; token += gridDim.x) {
    const uint4* source = p.x + static_cast<int64_t>(token) * row_words;
    uint4 first = {};
    uint4 second = {};
    if (threadIdx.x < p.hidden / kChannelsPerThread) {
      first = load_stream(source + 2 * threadIdx.x);
      second = load_stream(source + 2 * threadIdx.x + 1);
    }
    load_selection(p, shared, token);
    named_barrier(kRowBarrier, p.row_threads);
    count_earlier(p, shared, token);
    named_barrier(kRowBarrier, p.row_threads);
    if (threadIdx.x < 32) address_rows(p, shared, token, epoch, timing);
    named_barrier(kRowBarrier, p.row_threads);
    store_row<kFp8>(p, shared, source, first, second);
    named_barrier(kRowBarrier, p.row_threads);
    if (threadIdx.x < shared.num_destinations) {
      store_release_system(reinterpret_cast<uint64_t*>(shared.destination[threadIdx.x]), epoch);
    }
    __syncwarp();
  }
}

// `histogram` has room for the experts of one rank.
__device__ inline void send_counts(const DispatchParams& p, DispatchSendShared& shared,
                                   int* histogram, uint64_t epoch, const Timing& timing) {
  const int thread = threadIdx.x - p.row_threads;
  for (int peer = blockIdx.x; peer < p.context.num_ranks; peer += gridDim.x) {
    for (int e = thread; e < p.experts_per_rank; e += kCountThreads) histogram[e] = 0;
    if (thread == 0) {
      shared.rows = 0;
      shared.may_send =
          !is_masked(p.context, peer) && wait_slot_free(p.context, dispatch_ack_word(p, peer), peer,
                                                        epoch, timing, Phase::kDispatchSend);
    }
    named_barrier(kCountBarrier, kCountThreads);
    for (int token = thread; token < p.num_tokens; token += kCountThreads) {
      bool any = false;
      for (int k = 0; k < p.num_topk; ++k) {
        const int expert = read_expert(p, token * p.num_topk + k);
        if (expert < 0 || expert / p.experts_per_rank != peer) continue;
        atomicAdd(&histogram[expert - peer * p.experts_per_rank], 1);
        any = true;
      }
      if (any) atomicAdd(&shared.rows, 1);
    }
    named_barrier(kCountBarrier, kCountThreads);
    if (shared.may_send) {
      uint8_t* base = p.context.peers[peer];
      const int slot = slot_of(epoch);
      for (int e = thread; e < p.experts_per_rank; e += kCountThreads) {
        store_relaxed_system(word_at(base, p.layout.dispatch_count_at(slot, e, p.context.rank)),
                             tagged(epoch, min(histogram[e], p.max_tokens)));
      }
      if (thread == 0) {
        store_relaxed_system(word_at(base, p.layout.dispatch_rows_at(slot, p.context.rank)),
                             tagged(epoch, shared.rows));
      }
    }
    named_barrier(kCountBarrier, kCountThreads);
  }
}

}  // namespace ep_runtime
