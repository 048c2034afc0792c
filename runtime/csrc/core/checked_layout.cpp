// SPDX-License-Identifier: Apache-2.0
#include "ep_runtime/checked_layout.hpp"

#include <limits>
#include <stdexcept>
#include <string>

namespace ep_runtime {
namespace {

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(low) +
                                " to " + std::to_string(high) + ", got " + std::to_string(value) +
                                ".");
  }
}

}  // namespace

std::int64_t checked_local_experts(std::int64_t num_ranks, std::int64_t num_experts) {
  check_range("num_ranks", num_ranks, 1, kMaxRanks);
  check_range("num_experts", num_experts, 1, std::numeric_limits<std::int32_t>::max());
  if (num_experts % num_ranks != 0) {
    throw std::invalid_argument("num_experts must be divisible by num_ranks, got " +
                                std::to_string(num_experts) + " experts for " +
                                std::to_string(num_ranks) + " ranks.");
  }
  return num_experts / num_ranks;
}

LowLatencyLayout make_checked_layout(std::int64_t max_tokens, std::int64_t hidden,
                                     std::int64_t num_ranks, std::int64_t num_experts) {
  check_range("num_max_dispatch_tokens_per_rank", max_tokens, 1, kMaxTokensPerRank);
  check_range("hidden", hidden, kScaleGroup, kMaxHidden);
  if (hidden % kScaleGroup != 0) {
    throw std::invalid_argument("hidden must be a multiple of " + std::to_string(kScaleGroup) +
                                ", got " + std::to_string(hidden) + ".");
  }
  checked_local_experts(num_ranks, num_experts);
  return make_layout(static_cast<std::uint32_t>(max_tokens), static_cast<std::uint32_t>(hidden),
                     static_cast<std::uint32_t>(num_ranks),
                     static_cast<std::uint32_t>(num_experts));
}

}  // namespace ep_runtime
