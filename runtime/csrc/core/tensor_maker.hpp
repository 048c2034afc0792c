// Makes sets of new tensors without Python, and without torch's headers.
//
// Compiling against torch's headers ties a wheel to one torch. Its C functions for ahead-of-time
// compiled models are meant to outlive versions; only turning a tensor into a Python object needs a
// C++ function, THPVariable_Wrap, which is called by the address of its symbol. Where a torch lacks
// any of these, open_tensor_maker() says so and the caller makes its tensors in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace ep_runtime {

// One tensor of a set.
struct TensorSpec {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int32_t dtype;
  // How often its storage holds the first dimension: what lies behind is the owner's.
  int64_t storage_factor;
};

// The functions of one torch; all found, or none.
struct TorchFunctions {
  using Tensor = void*;
  int32_t (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                           Tensor*);
  int32_t (*reinterpret)(Tensor, int64_t, const int64_t*, const int64_t*, int64_t, Tensor*);
  int32_t (*destroy)(Tensor);
  PyObject* (*wrap)(const void*);
  int32_t (*cpu)();
  int32_t (*cuda)();
};

class TensorMaker {
 public:
  // `device_index` is -1 for the CPU. `dtypes` name torch's.
  TensorMaker(const TorchFunctions& torch, int device_index, std::vector<TensorSpec> specs);

  // A tuple of new tensors with undefined contents. Throws std::runtime_error when torch can't.
  pybind11::tuple make() const;

 private:
  pybind11::object make_one(const TensorSpec& spec) const;

  TorchFunctions torch_;
  int32_t device_type_;
  int32_t device_index_;
  std::vector<TensorSpec> specs_;
};

void bind_tensor_maker(pybind11::module_& m);

}  // namespace ep_runtime
