// For bindings of what needs torch's functions.
#pragma once

#include <pybind11/pybind11.h>

#include "functions.hpp"

namespace ep_runtime {

// `open` with None as its result where it throws UnsupportedTorch.
template <typename Result, typename... Arguments>
auto none_if_unsupported(Result (*open)(Arguments...)) {
  return [open](Arguments... arguments) -> pybind11::object {
    try {
      return pybind11::cast(open(arguments...));
    } catch (const UnsupportedTorch&) {
      return pybind11::none();
    }
  };
}

}  // namespace ep_runtime
