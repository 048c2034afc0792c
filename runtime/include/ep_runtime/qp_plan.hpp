// SPDX-License-Identifier: Apache-2.0
//
// How many RDMA queue pairs (QPs) the low-latency mode wants, and how deep they must be.
#pragma once

#include <cstdint>

namespace ep_runtime {

inline constexpr std::int64_t kDefaultQpDepth = 1024;
inline constexpr std::int64_t kMaxQpDepth = 32768;  // NVSHMEM refuses more

struct QpPlan {
  std::int64_t qps_per_rank;    // one for each local expert
  std::int64_t required_depth;  // what one dispatch plus one combine may leave in flight on a QP
  std::int64_t depth;           // what to ask NVSHMEM for: a power of two, the default or more
};

// A dispatch and a combine may each put max_tokens rows and one signal on the same QP before
// anything is retired, hence 2 * (max_tokens + 1) entries.
std::int64_t required_qp_depth(std::int64_t max_tokens);

QpPlan plan_queue_pairs(std::int64_t max_tokens, std::int64_t num_ranks, std::int64_t num_experts);

}  // namespace ep_runtime
