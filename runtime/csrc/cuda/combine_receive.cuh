// Combine, receive phase. A block waits for the rows of one token (or shares a token with other
// blocks when there are few) and sums them with the caller's weights, in float32 and in top-k
// order, so that the result has the same bits on every run.
#pragma once

#include "combine_in_place.cuh"
#include "device/divide.cuh"
#include "device/logfmt.cuh"
#include "device/protocol.cuh"

namespace ep_runtime {

struct CombineReceiveShared {
  const uint8_t* row[kMaxTopk];  // null: contributes nothing; also behind the last selection
  float weight[kMaxTopk];
};

// One selection of a token, held by the thread that will wait for its row.
struct Selection {
  int64_t expert;
  float weight;
  int own_place;  // of its row in `x`; -1: it is not one of this rank's own, or not read in place
};

// Not below zero only where the dispatch of the handle has left a row of `x`.
__device__ __forceinline__ int load_own_place(const CombineParams& p, int token, int k) {
  const int* places = own_places(p);
  const int tokens = places[0];
  const int topk = places[1];
  const int place = places[own_place_at(p, token, k)];
  // No short cut from one condition to the next: each would be a trip to memory of its own.
  const bool valid =
      (token < tokens) & (k < topk) & (place < rows_of_experts(p.num_experts, p.max_tokens));
  return valid ? place : -1;
}

template <bool kLogfmt>
__device__ __forceinline__ Selection load_selection(const CombineParams& p, int token) {
  const int k = threadIdx.x;
  if (k >= p.num_topk || token >= p.num_tokens) return {-1, 0.0f, -1};
  return {p.topk_idx[token * p.num_topk + k], p.topk_weights[token * p.num_topk + k],
          in_place<kLogfmt>(p, p.context.rank) ? load_own_place(p, token, k) : -1};
}

// A block's first share of the work: the chunks [begin, end) of a token. When tokens are fewer than
// blocks, several blocks share one; else a block takes whole tokens, one after the other.
struct Share {
  int token;
  int begin;
  int end;
};

__device__ __forceinline__ Share share_of_block(const CombineParams& p) {
  const int block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x);
  const int chunks = p.hidden / kChannelsPerThread;
  if (2 * p.num_tokens > blocks) return {block, 0, chunks};
  const int parts = min(divide_small(blocks, max(1, p.num_tokens)), (chunks + 31) / 32);
  const int per_part = divide_small(chunks + parts - 1, parts);
  const int token = divide_small(block, parts);
  const int begin = (block - token * parts) * per_part;
  return {token, begin, min(chunks, begin + per_part)};
}

// Thread k waits for the row of selection k.
__device__ __forceinline__ void wait_rows(const CombineParams& p, const LaunchShared& launch,
                                          CombineReceiveShared& shared, const Selection& selection,
                                          int token, bool count_wait) {
  const int k = threadIdx.x;
  if (k >= static_cast<int>(kMaxTopk)) return;
  shared.row[k] = nullptr;
  if (k >= p.num_topk) return;
  const int64_t expert = selection.expert;
  if (expert < 0 || expert >= p.num_experts) return;
  const int rank = divide_small(static_cast<int>(expert), p.experts_per_rank);
  if (is_masked(p.context, rank)) return;
  const uint64_t epoch = launch.epoch;
  const int slot = slot_of(epoch);
  shared.weight[k] = selection.weight;
  if (rank == p.context.rank && selection.own_place >= 0) {
    shared.row[k] = row_in_place(p, selection.own_place);
    return;
  }
  const int64_t since = clock64();
  uint64_t word;
  if (!wait_word(p.context, word_at(p.context.local, p.layout.combine_flag_at(slot, token, k)),
                 launch.timing.start_ns, launch.timing.deadline_ns,
                 WaitSite{Phase::kCombineReceive, rank, static_cast<int>(expert), token}, word,
                 [=](uint64_t value) { return value == epoch; })) {
    return;
  }
  if (count_wait && p.wait_stats != nullptr) {
    atomicAdd(p.wait_stats + rank, static_cast<unsigned long long>(clock64() - since));
  }
  shared.row[k] = p.context.local + p.layout.combine_row_at(slot, token, k);
}

__device__ __forceinline__ void accumulate(const uint4& words, float weight, float* sums) {
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low;
    float high;
    unpack_bf16(pairs[i], low, high);
    sums[2 * i] = fmaf(weight, low, sums[2 * i]);
    sums[2 * i + 1] = fmaf(weight, high, sums[2 * i + 1]);
  }
}

// Rows whose loads are in flight at once.
constexpr int kRowsAtOnce = 8;

__device__ __forceinline__ void sum_plain(const CombineParams& p,
                                          const CombineReceiveShared& shared, int chunk,
                                          float (&sums)[kChannelsPerThread]) {
  for (int base = 0; base < p.num_topk; base += kRowsAtOnce) {
    const uint8_t* rows[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = shared.row[base + i];
    uint4 words[kRowsAtOnce][2];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (rows[i] == nullptr) continue;
      const uint4* row = reinterpret_cast<const uint4*>(rows[i]) + 2 * chunk;
      words[i][0] = load_stream(row);
      words[i][1] = load_stream(row + 1);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (rows[i] == nullptr) continue;
      accumulate(words[i][0], shared.weight[base + i], sums);
      accumulate(words[i][1], shared.weight[base + i], sums + 8);
    }
  }
}

__device__ __forceinline__ void sum_logfmt(const CombineParams& p,
                                           const CombineReceiveShared& shared, int chunk,
                                           float (&sums)[kChannelsPerThread]) {
  const int group = chunk / kThreadsPerScale;
  for (int k = 0; k < p.num_topk; ++k) {
    const uint8_t* row = shared.row[k];
    if (row == nullptr) continue;
    const float weight = shared.weight[k];
    const uint32_t trailer = reinterpret_cast<const uint32_t*>(row + 2 * p.hidden)[group / 32];
    if (trailer >> (group % 32) & 1u) {
      float values[kChannelsPerThread];
      decode_logfmt(row + group * kGroupBytes, chunk % kThreadsPerScale, values);
#pragma unroll
      for (int i = 0; i < kChannelsPerThread; ++i) sums[i] = fmaf(weight, values[i], sums[i]);
    } else {
      const uint4* words = reinterpret_cast<const uint4*>(row) + 2 * chunk;
      accumulate(load_stream(words), weight, sums);
      accumulate(load_stream(words + 1), weight, sums + 8);
    }
  }
}

// `selection` is that of the share's token.
template <bool kLogfmt>
__device__ void combine_receive(const CombineParams& p, const LaunchShared& launch,
                                CombineReceiveShared& shared, const Share& share,
                                Selection selection) {
  const int chunks = p.hidden / kChannelsPerThread;
  const int stride = share.end - share.begin < chunks ? p.num_tokens : static_cast<int>(gridDim.x);
  for (int token = share.token; token < p.num_tokens; token += stride) {
    wait_rows(p, launch, shared, selection, token, share.begin == 0);
    selection = load_selection<kLogfmt>(p, token + stride);
    __syncthreads();
    for (int chunk = share.begin + threadIdx.x; chunk < share.end; chunk += blockDim.x) {
      float sums[kChannelsPerThread] = {};
      if constexpr (kLogfmt) {
        sum_logfmt(p, shared, chunk, sums);
      } else {
        sum_plain(p, shared, chunk, sums);
      }
      uint4* out = p.out + (static_cast<int64_t>(token) * chunks + chunk) * 2;
      out[0] = {pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]),
                pack_bf16(sums[4], sums[5]), pack_bf16(sums[6], sums[7])};
      out[1] = {pack_bf16(sums[8], sums[9]), pack_bf16(sums[10], sums[11]),
                pack_bf16(sums[12], sums[13]), pack_bf16(sums[14], sums[15])};
    }
    __syncthreads();
  }
}

}  // namespace ep_runtime
