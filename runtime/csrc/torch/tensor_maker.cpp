#include "tensor_maker.hpp"

#include <algorithm>
#include <stdexcept>

namespace py = pybind11;

namespace ep_runtime {

namespace {

// What torch's allocator aligns to, and more than any element needs.
constexpr int64_t kAlignment = 256;
// Far above any memory, far below what overflows when a few are added.
constexpr int64_t kMostBytes = int64_t{1} << 60;

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > kMostBytes)
    throw std::invalid_argument("a tensor of these sizes and strides needs too much memory.");
  return result;
}

// From the first element's first byte to the last one's last.
int64_t extent(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
               int64_t element_bytes) {
  const auto negative = [](int64_t number) { return number < 0; };
  if (sizes.empty() || sizes.size() != strides.size()) {
    throw std::invalid_argument("a tensor needs a stride for each of one or more sizes, got " +
                                std::to_string(sizes.size()) + " sizes and " +
                                std::to_string(strides.size()) + " strides.");
  }
  if (std::any_of(sizes.begin(), sizes.end(), negative) ||
      std::any_of(strides.begin(), strides.end(), negative)) {
    throw std::invalid_argument("sizes and strides must not be negative.");
  }
  // torch multiplies all sizes, also beside a zero.
  int64_t elements = 1;
  for (const int64_t size : sizes) elements = product(elements, std::max<int64_t>(1, size));
  if (std::count(sizes.begin(), sizes.end(), 0) > 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    last += product(sizes[i] - 1, strides[i]);
    if (last > kMostBytes) product(last, kMostBytes);
  }
  return product(last + 1, element_bytes);
}

}  // namespace

TensorMaker::TensorMaker(const Torch& torch, int device_index, const std::vector<Spec>& specs)
    : torch_(torch),
      device_type_(torch.device_type(device_index)),
      device_index_(std::max(0, device_index)) {
  for (const auto& [block, sizes, strides, dtype, room_behind] : specs) {
    const int64_t following = static_cast<int64_t>(blocks_.size());
    if (block != following && (block < 0 || block != following - 1))
      throw std::invalid_argument("blocks must be numbered in the order of their tensors.");
    if (room_behind < 0 || room_behind > kMostBytes)
      throw std::invalid_argument("the room behind a tensor must not be negative or too large.");
    const int32_t code = torch.dtype(dtype);
    const int64_t bytes = extent(sizes, strides, torch.element_bytes(code)) + room_behind;
    if (block == following) blocks_.push_back({places_.size(), 0, 0});
    Block& home = blocks_.back();
    const int64_t offset = (home.bytes + kAlignment - 1) / kAlignment * kAlignment;
    home.bytes = offset + bytes;
    if (home.bytes > kMostBytes) throw std::invalid_argument("a block needs too much memory.");
    ++home.count;
    places_.push_back({sizes, strides, code, offset});
  }
}

void TensorMaker::make(MadeTensor* made) const {
  for (const Block& block : blocks_) {
    torch_.make_over_block(block.bytes, &places_[block.first], block.count, device_type_,
                           device_index_, made + block.first);
  }
}

py::tuple TensorMaker::make() const {
  std::vector<MadeTensor> made(size());
  make(made.data());
  py::tuple tensors(size());
  for (size_t i = 0; i < size(); ++i) tensors[i] = std::move(made[i].object);
  return tensors;
}

}  // namespace ep_runtime
