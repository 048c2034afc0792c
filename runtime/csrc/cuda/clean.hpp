// The clean kernel: forget everything that has arrived, on all ranks together.
#pragma once

#include <cuda_runtime.h>

#include "context.hpp"

namespace ep_runtime {

struct CleanParams {
  DeviceContext context;
  LowLatencyLayout layout;
  uint64_t timeout_ns;
};

cudaError_t launch_clean(const CleanParams& params, cudaStream_t stream);

}  // namespace ep_runtime
