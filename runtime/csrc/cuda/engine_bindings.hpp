// The operations of an engine as Python sees them, whatever its memory: addresses, streams and
// sizes are integers, so that no torch header is needed and one wheel serves every torch.
#pragma once

#include <pybind11/pybind11.h>

#include "engine.hpp"

namespace ep_runtime {

// Adds class Engine and what the build was made for; the module derives its own engine from it.
void bind_operations(pybind11::module_& m);

}  // namespace ep_runtime
