// Sets of new tensors, and patterns of tensors, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ep_runtime {

void bind_torch(pybind11::module_& m);

}  // namespace ep_runtime
