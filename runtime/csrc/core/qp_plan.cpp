// SPDX-License-Identifier: Apache-2.0
#include "ep_runtime/qp_plan.hpp"

#include <stdexcept>
#include <string>

#include "ep_runtime/checked_layout.hpp"

namespace ep_runtime {

std::int64_t required_qp_depth(std::int64_t max_tokens) {
  const std::int64_t most = kMaxQpDepth / 2 - 1;
  if (max_tokens < 1 || max_tokens > most) {
    throw std::invalid_argument(
        "num_max_dispatch_tokens_per_rank must be from 1 to " + std::to_string(most) +
        " for queue pairs of at most 32768 entries, got " + std::to_string(max_tokens) + ".");
  }
  return 2 * (max_tokens + 1);
}

QpPlan plan_queue_pairs(std::int64_t max_tokens, std::int64_t num_ranks, std::int64_t num_experts) {
  QpPlan plan{};
  plan.qps_per_rank = checked_local_experts(num_ranks, num_experts);
  plan.required_depth = required_qp_depth(max_tokens);
  plan.depth = kDefaultQpDepth;
  while (plan.depth < plan.required_depth) plan.depth *= 2;
  return plan;
}

}  // namespace ep_runtime
