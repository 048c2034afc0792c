// Makes sets of new tensors without Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "functions.hpp"

namespace ep_runtime {

class TensorMaker {
 public:
  // The block it lies in (0, 1, ...: the next or the same as the one before it), sizes, strides
  // (elements), the dtype's name, and bytes of the owner's own behind it.
  using Spec = std::tuple<int, std::vector<int64_t>, std::vector<int64_t>, std::string, int64_t>;

  // std::invalid_argument for specs that aren't any. `device_index` is -1 for the CPU.
  TensorMaker(const Torch& torch, int device_index, const std::vector<Spec>& specs);

  size_t size() const { return places_.size(); }

  // New tensors with undefined contents, into made[size()]. The tensors of a block share memory
  // that ends with the last of them. AllocationFailed when torch can't.
  void make(MadeTensor* made) const;
  pybind11::tuple make() const;

 private:
  struct Block {
    size_t first;
    size_t count;
    int64_t bytes;
  };

  Torch torch_;
  int32_t device_type_;
  int32_t device_index_;
  std::vector<TensorPlace> places_;
  std::vector<Block> blocks_;
};

}  // namespace ep_runtime
