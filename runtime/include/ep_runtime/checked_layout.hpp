// SPDX-License-Identifier: Apache-2.0
//
// Host-side checks in front of layout.hpp. Each refusal is one sentence that names the argument,
// thrown as std::invalid_argument (ValueError in Python).
#pragma once

#include <cstdint>

#include "ep_runtime/layout.hpp"

namespace ep_runtime {

// make_layout for arguments from outside, refused unless they are inside the limits.
LowLatencyLayout make_checked_layout(std::int64_t max_tokens, std::int64_t hidden,
                                     std::int64_t num_ranks, std::int64_t num_experts);

// Refuses ranks and experts that make_checked_layout would refuse; returns experts per rank.
std::int64_t checked_local_experts(std::int64_t num_ranks, std::int64_t num_experts);

}  // namespace ep_runtime
