// Dispatch, send phase. One block takes one token at a time: it loads the row once, quantises it
// in registers and stores it once to every rank that holds one of the token's experts. Blocks from
// the end of the grid, which have no token when tokens are few, count what each rank will receive.
//
// A row's place is the number of earlier rows that go to the same place, counted from topk_idx
// itself: no atomics across blocks, no grid barrier, and the same order on every run.
#pragma once

#include "combine_in_place.cuh"
#include "device/divide.cuh"
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

// The word of topk_idx[entry], without its first bit.
__device__ __forceinline__ uint32_t selection_of(const DispatchParams& p, int entry,
                                                 int64_t expert) {
  if (expert < 0 || expert >= p.num_experts) {
    if (expert != -1) {
      record_problem(p.context, Problem::kExpertOutOfRange,
                     WaitSite{Phase::kDispatchSend, p.context.rank, static_cast<int>(expert),
                              entry / p.num_topk},
                     0);
    }
    return kNothing;
  }
  const uint32_t rank = divide_small(static_cast<int>(expert), p.experts_per_rank);
  if (is_masked(p.context, rank)) return kNothing;
  return rank << 16 | static_cast<uint32_t>(expert);
}

// Every block reads the whole of topk_idx, once and in parallel: a warp takes as many tokens as
// have room in its lanes, so that it sees all of a token's selections.
__device__ __forceinline__ int tokens_of_warp(const DispatchParams& p) {
  return divide_small(32, p.num_topk);
}

// The last warps take the first tokens: they have the least of a row to encode.
__device__ __forceinline__ int first_staged_token(const DispatchParams& p) {
  return static_cast<int>((blockDim.x - 1 - threadIdx.x) / 32) * tokens_of_warp(p);
}

__device__ __forceinline__ int staged_stride(const DispatchParams& p) {
  return static_cast<int>(blockDim.x / 32) * tokens_of_warp(p);
}

// Entries of two passes, whose trips to memory overlap.
struct LoadedSelections {
  static constexpr int kPasses = 2;
  int64_t experts[kPasses];
};

__device__ __forceinline__ LoadedSelections load_selections(const DispatchParams& p, int first) {
  LoadedSelections loaded = {};
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < LoadedSelections::kPasses; ++i) {
    const int entry = (first + i * staged_stride(p)) * p.num_topk + lane;
    if (entry < p.num_tokens * p.num_topk) loaded.experts[i] = p.topk_idx[entry];
  }
  return loaded;
}

// `loaded` is what load_selections gave for first_staged_token.
__device__ __forceinline__ void stage_selections(const DispatchParams& p, uint32_t* table,
                                                 LoadedSelections loaded) {
  const int lane = threadIdx.x % 32;
  const int in_group = divide_small(lane, p.num_topk);
  for (int first = first_staged_token(p); first < p.num_tokens;) {
#pragma unroll
    for (int i = 0; i < LoadedSelections::kPasses; ++i) {
      const int begin = first + i * staged_stride(p);
      if (begin >= p.num_tokens) break;
      const int entry = begin * p.num_topk + lane;
      const bool valid = in_group < tokens_of_warp(p) && begin + in_group < p.num_tokens;
      const uint32_t selection = valid ? selection_of(p, entry, loaded.experts[i]) : kNothing;
      const uint32_t same = __match_any_sync(0xffffffffu, in_group << 16 | rank_of(selection));
      if (!valid) continue;
      const bool is_first = selection != kNothing && __ffs(same) - 1 == lane;
      table[entry] = is_first ? selection | kFirstOfRank : selection;
    }
    first += LoadedSelections::kPasses * staged_stride(p);
    if (first < p.num_tokens) loaded = load_selections(p, first);
  }
}

// Where topk_idx does not fit into shared memory: selections are read where they are needed.
__device__ __noinline__ inline uint32_t read_marked_selection(const DispatchParams& p, int entry) {
  const uint32_t selection = selection_of(p, entry, p.topk_idx[entry]);
  if (selection == kNothing) return kNothing;
  for (int other = entry / p.num_topk * p.num_topk; other < entry; ++other) {
    if (rank_of(selection_of(p, other, p.topk_idx[other])) == rank_of(selection)) {
      return selection;
    }
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
  const int lane = threadIdx.x % 32;
  Earlier earlier = {0, 0};
  const auto add = [&](uint32_t other) {
    earlier.same_expert += ((other ^ own) & ~kFirstOfRank) == 0;
    earlier.same_rank += other >> 16 == (own | kFirstOfRank) >> 16;  // never kNothing's
  };
  if constexpr (kStaged) {
    const uint4* fours = reinterpret_cast<const uint4*>(table);
#pragma unroll 2
    for (int i = lane; i < end / 4; i += 32) {
      const uint4 four = fours[i];
      add(four.x);
      add(four.y);
      add(four.z);
      add(four.w);
    }
    if (lane < end % 4) add(table[end / 4 * 4 + lane]);
  } else {
    for (int entry = lane; entry < end; entry += 32) add(read_marked_selection(p, entry));
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

// Sixteen channels of a BF16 row.
struct Chunk {
  uint4 low;
  uint4 high;
};

__device__ __forceinline__ Chunk chunk_at(const DispatchParams& p, int token, int chunk) {
  const uint4* row = p.x + static_cast<int64_t>(token) * (p.hidden / 8);
  return {load_stream(row + 2 * chunk), load_stream(row + 2 * chunk + 1)};
}

// Whether this thread has a part of the token's row.
__device__ __forceinline__ bool has_chunk(const DispatchParams& p, int token) {
  return token < p.num_tokens && static_cast<int>(threadIdx.x) < p.hidden / kChannelsPerThread;
}

// Its first part, if there is one.
__device__ __forceinline__ Chunk load_chunk(const DispatchParams& p, int token) {
  return has_chunk(p, token) ? chunk_at(p, token, threadIdx.x) : Chunk{};
}

// A chunk as it travels.
template <bool kFp8>
struct Encoded {
  uint4 words[kFp8 ? 1 : 2];
  float inverse;  // of the eight neighbours' scale
};

// The eight neighbouring lanes that share a scale call together.
template <bool kFp8>
__device__ __forceinline__ Encoded<kFp8> encode(const DispatchParams& p, const Chunk& chunk) {
  Encoded<kFp8> encoded;
  if constexpr (kFp8) {
    encoded.inverse = quantize_chunk(chunk.low, chunk.high, p.round_scale, encoded.words[0]);
  } else {
    encoded = {{chunk.low, chunk.high}, 0.0f};
  }
  return encoded;
}

// What load_chunk gave.
template <bool kFp8>
__device__ __forceinline__ Encoded<kFp8> encode_chunk(const DispatchParams& p, int token,
                                                      const Chunk& chunk) {
  return has_chunk(p, token) ? encode<kFp8>(p, chunk) : Encoded<kFp8>{};
}

// Selections of the token that may have a row, one bit each. All lanes of a warp.
template <bool kStaged>
__device__ __forceinline__ uint32_t rows_of_token(const DispatchParams& p, const uint32_t* table,
                                                  int token) {
  const int lane = threadIdx.x % 32;
  if constexpr (kStaged) {
    return __ballot_sync(0xffffffffu,
                         lane < p.num_topk && is_first_of_rank(table[token * p.num_topk + lane]));
  }
  return 0xffffffffu >> (32 - p.num_topk);
}

// `rows` are the selections that may have a row, `encoded` this thread's first part of it.
template <bool kFp8>
__device__ __forceinline__ void store_row(const DispatchParams& p, DispatchSendShared& shared,
                                          int token, uint32_t rows, Encoded<kFp8> encoded) {
  for (int chunk = threadIdx.x; chunk < p.hidden / kChannelsPerThread; chunk += blockDim.x) {
    if (chunk != static_cast<int>(threadIdx.x)) {
      encoded = encode<kFp8>(p, chunk_at(p, token, chunk));
    }
    for (uint32_t left = rows; left != 0; left &= left - 1) {
      uint8_t* row = shared.target[__ffs(left) - 1].row;
      if (row == nullptr) continue;
      uint4* out = reinterpret_cast<uint4*>(row + p.layout.payload_offset);
      if constexpr (kFp8) {
        store_stream(out + chunk, encoded.words[0]);
        if (chunk % kThreadsPerScale == 0) {
          reinterpret_cast<float*>(row + p.layout.scales_offset)[chunk / kThreadsPerScale] =
              encoded.inverse;
        }
      } else {
        store_stream(out + 2 * chunk, encoded.words[0]);
        store_stream(out + 2 * chunk + 1, encoded.words[1]);
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

// `encoded` is this thread's part of the block's first token.
template <bool kFp8, bool kStaged>
__device__ void send_rows(const DispatchParams& p, DispatchSendShared& shared,
                          const LaunchShared& launch, const uint32_t* table,
                          Encoded<kFp8> encoded) {
  for (int token = blockIdx.x; token < p.num_tokens; token += gridDim.x) {
    const bool is_first = token == static_cast<int>(blockIdx.x);
    const Chunk chunk = is_first ? Chunk{} : load_chunk(p, token);
    const uint32_t rows = rows_of_token<kStaged>(p, table, token);
    for (int k = threadIdx.x / 32; k < p.num_topk; k += blockDim.x / 32) {
      address_row<kStaged>(p, shared, launch, table, token, k);
    }
    if (!is_first) encoded = encode_chunk<kFp8>(p, token, chunk);
    __syncthreads();
    store_row<kFp8>(p, shared, token, rows, encoded);
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
#pragma unroll 1
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
