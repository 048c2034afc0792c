#include "tensor_pattern.hpp"

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace ep_runtime {

TensorPattern::TensorPattern(const Torch& torch, int device_index, const std::string& dtype,
                             std::vector<int64_t> sizes)
    : dtype_(torch.dtype(dtype)),
      device_type_(torch.device_type(device_index)),
      device_index_(device_index),
      sizes_(std::move(sizes)) {}

bool TensorPattern::match(const Torch& torch, py::handle object, TensorFields& fields) const {
  TensorFields found;
  if (!torch.read(object, found)) return false;
  if (found.dtype != dtype_ || found.device_type != device_type_) return false;
  // The CPU's index is -1 or 0, as the tensor was made.
  if (device_index_ >= 0 && found.device_index != device_index_) return false;
  if (found.dimensions != static_cast<int64_t>(sizes_.size())) return false;
  int64_t stride = 1;
  for (size_t i = sizes_.size(); i-- > 0;) {
    if (sizes_[i] >= 0 && found.sizes[i] != sizes_[i]) return false;
    if (found.strides[i] != stride) return false;
    stride *= std::max<int64_t>(1, found.sizes[i]);
  }
  fields = found;
  return true;
}

}  // namespace ep_runtime
