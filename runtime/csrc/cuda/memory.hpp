// What the engine asks of symmetric memory, whoever provides it.
#pragma once

#include <cstdint>

#include "context.hpp"

namespace ep_runtime {

class Memory {
 public:
  virtual ~Memory() = default;
  // Of one rank.
  virtual uint64_t bytes() const = 0;
  // Where the rank's memory is mapped here; null: only puts reach it.
  virtual uint8_t* address(int rank) const = 0;
  // How to reach the ranks that are not mapped.
  virtual Puts puts() const { return {}; }
};

}  // namespace ep_runtime
