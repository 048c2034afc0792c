#include "torch_bindings.hpp"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "none_if_unsupported.hpp"
#include "tensor_maker.hpp"
#include "tensor_pattern.hpp"

namespace py = pybind11;

namespace ep_runtime {

namespace {

// A pattern with the torch that it reads by.
struct Matcher {
  Torch torch;
  TensorPattern pattern;
};

TensorMaker open_maker(const std::vector<std::string>& libraries, py::handle tensor_type,
                       int device_index, const std::vector<TensorMaker::Spec>& specs) {
  return {Torch(libraries, tensor_type), device_index, specs};
}

Matcher open_matcher(const std::vector<std::string>& libraries, py::handle tensor_type,
                     int device_index, const std::string& dtype, std::vector<int64_t> sizes) {
  const Torch torch(libraries, tensor_type);
  return {torch, TensorPattern(torch, device_index, dtype, std::move(sizes))};
}

// (address, sizes), or None.
py::object match(const Matcher& matcher, py::handle object) {
  TensorFields fields;
  if (!matcher.pattern.match(matcher.torch, object, fields)) return py::none();
  const std::vector<int64_t> sizes(fields.sizes, fields.sizes + fields.dimensions);
  return py::make_tuple(reinterpret_cast<uintptr_t>(fields.data), sizes);
}

}  // namespace

void bind_torch(py::module_& m) {
  py::class_<TensorMaker>(m, "TensorMaker")
      .def("make", py::overload_cast<>(&TensorMaker::make, py::const_));
  m.def("open_tensor_maker", none_if_unsupported(&open_maker), py::arg("libraries"),
        py::arg("tensor_type"), py::arg("device_index"), py::arg("specs"));
  // The kernels' modules match without Python; here it is for the tests, which have no GPU.
  py::class_<Matcher>(m, "TensorMatcher").def("match", &match);
  m.def("open_tensor_matcher", none_if_unsupported(&open_matcher), py::arg("libraries"),
        py::arg("tensor_type"), py::arg("device_index"), py::arg("dtype"), py::arg("sizes"));
}

}  // namespace ep_runtime
