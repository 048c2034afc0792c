// What the NVSHMEM that this is built against can do.
#pragma once

#include <non_abi/nvshmem_version.h>

#define EP_RUNTIME_NVSHMEM_VERSION                                             \
  (NVSHMEM_VENDOR_MAJOR_VERSION * 10000 + NVSHMEM_VENDOR_MINOR_VERSION * 100 + \
   NVSHMEM_VENDOR_PATCH_VERSION)

static_assert(EP_RUNTIME_NVSHMEM_VERSION >= 30309, "NVSHMEM 3.3.9 or newer is needed");

// nvshmemx_qp_*: in 3.5.0 too, but broken there.
#define EP_RUNTIME_EXPLICIT_QUEUE_PAIRS (EP_RUNTIME_NVSHMEM_VERSION >= 30519)
