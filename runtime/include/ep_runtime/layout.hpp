// SPDX-License-Identifier: Apache-2.0
//
// What lies where in the symmetric memory of the low-latency mode: the one truth for host code,
// device code and Python. Plain C++17, usable in kernels; it neither allocates nor throws
// (checked_layout.hpp refuses bad arguments on the host).
//
// Every rank holds the same layout, so an offset computed here is good on any peer. With
//   M = most tokens a rank may dispatch, H = hidden size, R = ranks, E = experts,
//   L = E / R (experts of one rank), K = min(32, E) (most top-k entries of a token),
//   S = 2 slots (an operation of epoch e uses slot e mod 2, so two may be in flight)
// the regions are, in this order and each starting on a 128-byte boundary:
//   ack             [R]          u64   written by rank r: how many of our operations it has read,
//                                      16 bits for each of dispatch slot 0 and 1, combine slot 0, 1
//   barrier         [R]          u64   arrivals of the clean barrier
//   dispatch_count  [S][R][L+1]  u64   epoch tag << 32 | rows from rank r for local expert l;
//                                      the last word counts the rows on the wire from rank r
//   combine_flag    [S][M][K]    u64   epoch tag of the combine row for (token, k)
//   dispatch_row    [S][R][M]    rows of align128(P + 2*H) bytes: a 16-byte header, K route
//                                entries of 8 bytes, then at P = 16 + 8*K rounded up to 16 the
//                                payload (FP8 row followed by H/128 float32 scales, or BF16 row;
//                                2*H bytes hold either)
//   combine_row     [S][M][K]    rows of align128(2*H + 16) bytes: the row, then 128 bits that
//                                tell which of its 128-channel groups are LogFMT-encoded
// so that
//   total_bytes = 2*a(8R) + a(16R(L+1)) + a(16MK) + 2RM*a(P + 2H) + 2MK*a(2H + 16),
//   a(n) = n rounded up to a multiple of 128.
// All bytes zero means "nothing has arrived": tags start at 1.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define EP_RUNTIME_HD __host__ __device__
#else
#define EP_RUNTIME_HD
#endif

namespace ep_runtime {

inline constexpr std::uint64_t kRegionAlignment = 128;
inline constexpr std::uint64_t kSlots = 2;
inline constexpr std::uint64_t kWordBytes = 8;
inline constexpr std::uint64_t kRowHeaderBytes = 16;
inline constexpr std::uint64_t kRouteEntryBytes = 8;
inline constexpr std::uint64_t kVectorBytes = 16;          // widest access of a thread
inline constexpr std::uint64_t kCombineTrailerBytes = 16;  // one bit per 128-channel group
inline constexpr std::uint32_t kScaleGroup = 128;          // channels that share one scale
inline constexpr std::uint32_t kMaxTopk = 32;
inline constexpr std::uint32_t kMaxHidden = 16384;
inline constexpr std::uint32_t kMaxRanks = 1024;
inline constexpr std::uint32_t kMaxTokensPerRank = 65535;

EP_RUNTIME_HD constexpr std::uint64_t align_region(std::uint64_t bytes) {
  return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
}

// Offsets are in bytes from the start of a rank's symmetric memory.
struct LowLatencyLayout {
  std::uint32_t max_tokens;     // M
  std::uint32_t hidden;         // H
  std::uint32_t num_ranks;      // R
  std::uint32_t num_experts;    // E
  std::uint32_t local_experts;  // L
  std::uint32_t topk_capacity;  // K

  std::uint64_t dispatch_row_stride;
  std::uint64_t combine_row_stride;
  std::uint64_t route_offset;    // of the route entries inside a dispatch row
  std::uint64_t payload_offset;  // of the payload inside a dispatch row
  std::uint64_t scales_offset;   // of the float32 scales inside a dispatch row with FP8 payload

  std::uint64_t ack;
  std::uint64_t barrier;
  std::uint64_t dispatch_count;
  std::uint64_t combine_flag;
  std::uint64_t dispatch_row;
  std::uint64_t combine_row;
  std::uint64_t total_bytes;

  EP_RUNTIME_HD constexpr std::uint64_t ack_at(std::uint32_t rank) const {
    return ack + rank * kWordBytes;
  }
  EP_RUNTIME_HD constexpr std::uint64_t barrier_at(std::uint32_t rank) const {
    return barrier + rank * kWordBytes;
  }
  // `local_expert` may be L: the count of rows on the wire.
  EP_RUNTIME_HD constexpr std::uint64_t dispatch_count_at(std::uint32_t slot,
                                                          std::uint32_t source_rank,
                                                          std::uint32_t local_expert) const {
    const std::uint64_t block = std::uint64_t{slot} * num_ranks + source_rank;
    return dispatch_count +
           (block * (std::uint64_t{local_experts} + 1) + local_expert) * kWordBytes;
  }
  EP_RUNTIME_HD constexpr std::uint64_t combine_flag_at(std::uint32_t slot, std::uint32_t token,
                                                        std::uint32_t k) const {
    const std::uint64_t row = std::uint64_t{slot} * max_tokens + token;
    return combine_flag + (row * topk_capacity + k) * kWordBytes;
  }
  EP_RUNTIME_HD constexpr std::uint64_t dispatch_row_at(std::uint32_t slot,
                                                        std::uint32_t source_rank,
                                                        std::uint32_t index) const {
    const std::uint64_t block = std::uint64_t{slot} * num_ranks + source_rank;
    return dispatch_row + (block * max_tokens + index) * dispatch_row_stride;
  }
  EP_RUNTIME_HD constexpr std::uint64_t combine_row_at(std::uint32_t slot, std::uint32_t token,
                                                       std::uint32_t k) const {
    const std::uint64_t row = std::uint64_t{slot} * max_tokens + token;
    return combine_row + (row * topk_capacity + k) * combine_row_stride;
  }
};

// Arguments must be inside the limits above, with R dividing E; nothing is checked here.
EP_RUNTIME_HD constexpr LowLatencyLayout make_layout(std::uint32_t max_tokens, std::uint32_t hidden,
                                                     std::uint32_t num_ranks,
                                                     std::uint32_t num_experts) {
  LowLatencyLayout layout{};
  layout.max_tokens = max_tokens;
  layout.hidden = hidden;
  layout.num_ranks = num_ranks;
  layout.num_experts = num_experts;
  layout.local_experts = num_experts / num_ranks;
  layout.topk_capacity = num_experts < kMaxTopk ? num_experts : kMaxTopk;

  const std::uint64_t tokens = max_tokens;
  const std::uint64_t ranks = num_ranks;
  const std::uint64_t choices = tokens * layout.topk_capacity;

  layout.route_offset = kRowHeaderBytes;
  layout.payload_offset =
      (kRowHeaderBytes + kRouteEntryBytes * layout.topk_capacity + kVectorBytes - 1) /
      kVectorBytes * kVectorBytes;
  layout.scales_offset = layout.payload_offset + hidden;
  layout.combine_row_stride = align_region(std::uint64_t{2} * hidden + kCombineTrailerBytes);
  layout.dispatch_row_stride = align_region(layout.payload_offset + std::uint64_t{2} * hidden);

  std::uint64_t end = 0;
  layout.ack = end;
  end += align_region(ranks * kWordBytes);
  layout.barrier = end;
  end += align_region(ranks * kWordBytes);
  layout.dispatch_count = end;
  end += align_region(kSlots * ranks * (std::uint64_t{layout.local_experts} + 1) * kWordBytes);
  layout.combine_flag = end;
  end += align_region(kSlots * choices * kWordBytes);
  layout.dispatch_row = end;
  end += kSlots * ranks * tokens * layout.dispatch_row_stride;
  layout.combine_row = end;
  end += kSlots * choices * layout.combine_row_stride;
  layout.total_bytes = end;
  return layout;
}

}  // namespace ep_runtime
