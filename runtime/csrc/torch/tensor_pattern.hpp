// What an argument of a call has to be: compared in tens of nanoseconds, where Python needs
// microseconds for each tensor.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "functions.hpp"

namespace ep_runtime {

class TensorPattern {
 public:
  // Contiguous, of these sizes (-1: any), on this device (-1: the CPU).
  TensorPattern(const Torch& torch, int device_index, const std::string& dtype,
                std::vector<int64_t> sizes);

  // Whether `object` is such a tensor, which is then in `fields`. A tensor that torch also calls
  // contiguous because a size is 0 or 1 may be missed.
  bool match(const Torch& torch, pybind11::handle object, TensorFields& fields) const;

 private:
  int32_t dtype_;
  int32_t device_type_;
  int32_t device_index_;
  std::vector<int64_t> sizes_;
};

}  // namespace ep_runtime
