// torch's functions for tensors, found at run time.
//
// Compiling against torch's headers ties a wheel to one torch. Its C functions for ahead-of-time
// compiled models are meant to outlive versions; only turning a tensor into a Python object needs a
// C++ function, THPVariable_Wrap, which is called by the address of its symbol. Where a torch lacks
// any of these, UnsupportedTorch is thrown and the caller does its work in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ep_runtime {

// Says what torch could not allocate; torch's own error would say more.
class AllocationFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a tensor is. `sizes` and `strides` (elements) point into the tensor.
struct TensorFields {
  void* data;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int64_t dimensions;
  const int64_t* sizes;
  const int64_t* strides;
};

// Says what is missing.
class UnsupportedTorch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where a tensor lies in a block, `offset` in bytes.
struct TensorPlace {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int32_t dtype;
  int64_t offset;
};

// A new tensor, and where its elements are.
struct MadeTensor {
  pybind11::object object;
  void* data;
};

class Torch {
 public:
  // The address of an at::Tensor, which holds nothing but the address of a TensorImpl.
  using Handle = void*;

  // `libraries` are paths of torch's, loaded already; `tensor_type` is torch.Tensor.
  Torch(const std::vector<std::string>& libraries, pybind11::handle tensor_type);

  // torch's number for a dtype by its name ("bfloat16").
  int32_t dtype(const std::string& name) const;

  int32_t device_type(int device_index) const { return device_index < 0 ? cpu_() : cuda_(); }

  // Bytes of one element.
  int64_t element_bytes(int32_t dtype) const { return static_cast<int64_t>(element_size_(dtype)); }

  // A new contiguous tensor with undefined contents, or AllocationFailed.
  MadeTensor make(const std::vector<int64_t>& sizes, int32_t dtype, int32_t device_type,
                  int32_t device_index) const;

  // `count` tensors over one new block of `bytes`. Whoever describes them has made sure that they
  // lie within it, at multiples of their elements.
  void make_over_block(int64_t bytes, const TensorPlace* places, size_t count, int32_t device_type,
                       int32_t device_index, MadeTensor* made) const;

  // False, with nothing written, for what isn't exactly a torch.Tensor with memory.
  bool read(pybind11::handle object, TensorFields& fields) const;

 private:
  Handle allocate(const std::vector<int64_t>& sizes, int32_t dtype, int32_t device_type,
                  int32_t device_index) const;
  pybind11::object as_object(Handle tensor) const;
  bool reads_what_it_makes() const;

  int32_t (*empty_strided_)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                            Handle*);
  int32_t (*alloc_from_pool_)(Handle, int64_t, int32_t, int64_t, const int64_t*, const int64_t*,
                              Handle*);
  size_t (*element_size_)(int32_t);
  int32_t (*destroy_)(Handle);
  PyObject* (*wrap_)(const void*);
  int32_t (*cpu_)();
  int32_t (*cuda_)();
  int32_t (*data_)(Handle, void**);
  int32_t (*dtype_)(Handle, int32_t*);
  int32_t (*device_type_)(Handle, int32_t*);
  int32_t (*device_index_)(Handle, int32_t*);
  int32_t (*dimensions_)(Handle, int64_t*);
  int32_t (*sizes_)(Handle, int64_t**);
  int32_t (*strides_)(Handle, int64_t**);
  std::vector<std::string> libraries_;
  int32_t byte_ = 0;  // torch's number for uint8
  pybind11::object tensor_type_;
  pybind11::object implementation_name_;  // "_cdata", interned
};

}  // namespace ep_runtime
