// The puts of device/put.cuh through NVSHMEM's public device API, which knows the NIC handler, the
// layout of its queue pairs and the version at hand. Where it has explicit queue pairs, data and
// flag of a row share one; before, a put with signal is what orders them.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "device/put.cuh"
#include "version.hpp"

namespace ep_runtime {
namespace {

// The same place in this rank's memory names the place in any rank's.
__device__ __forceinline__ uint64_t* symmetric_word(const DeviceContext& context, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(context.local + offset);
}

#if EP_RUNTIME_EXPLICIT_QUEUE_PAIRS
__device__ __forceinline__ nvshmemx_qp_handle_t queue_pair(const DeviceContext& context,
                                                           int local_expert) {
  const Puts& puts = context.puts;
  return puts.queue_pairs == nullptr ? NVSHMEMX_QP_DEFAULT
                                     : puts.queue_pairs[local_expert % puts.num_queue_pairs];
}
#endif

// What a transport without order would do now and then, done always: for tests, which must notice.
__device__ __noinline__ void put_row_after_its_flag(const RowPut& row, uint64_t* target,
                                                    uint64_t* flag, uint64_t epoch) {
  if (threadIdx.x % 32 == 0) {
    nvshmemx_signal_op(flag, epoch, NVSHMEM_SIGNAL_SET, row.rank);
    nvshmem_quiet();
    for (int i = 0; i < 100; ++i) __nanosleep(1000);
  }
  __syncwarp();
  nvshmemx_putmem_nbi_warp(target, row.source, row.bytes, row.rank);
}

}  // namespace

__device__ void put_row(const DeviceContext& context, const RowPut& row, uint64_t epoch) {
  // The row was written by all threads of the block or warp; the NIC reads it past the caches.
  __threadfence_system();
  __syncwarp();
  uint64_t* target = symmetric_word(context, row.offset);
  uint64_t* flag = symmetric_word(context, row.flag_offset);
  if (context.puts.break_order) {
    put_row_after_its_flag(row, target, flag, epoch);
    return;
  }
#if EP_RUNTIME_EXPLICIT_QUEUE_PAIRS
  nvshmemx_qp_uint64_put_signal_nbi_warp(target, reinterpret_cast<const uint64_t*>(row.source),
                                         row.bytes / kWordBytes, flag, epoch, NVSHMEM_SIGNAL_SET,
                                         row.rank, queue_pair(context, row.local_expert));
#else
  nvshmemx_putmem_signal_nbi_warp(target, row.source, row.bytes, flag, epoch, NVSHMEM_SIGNAL_SET,
                                  row.rank);
#endif
}

__device__ void put_words(const DeviceContext& context, int rank, uint64_t offset,
                          const uint8_t* source, uint64_t bytes) {
  __threadfence_system();
  __syncwarp();
  uint64_t* target = symmetric_word(context, offset);
#if EP_RUNTIME_EXPLICIT_QUEUE_PAIRS
  nvshmemx_qp_uint64_put_nbi_warp(target, reinterpret_cast<const uint64_t*>(source),
                                  bytes / kWordBytes, rank, queue_pair(context, 0));
#else
  nvshmemx_putmem_nbi_warp(target, source, bytes, rank);
#endif
}

__device__ void put_word(const DeviceContext& context, int rank, uint64_t offset, uint64_t value) {
#if EP_RUNTIME_EXPLICIT_QUEUE_PAIRS
  nvshmemx_qp_uint64_p(symmetric_word(context, offset), value, rank, queue_pair(context, 0));
#else
  nvshmem_uint64_p(symmetric_word(context, offset), value, rank);
#endif
}

__device__ void drain_puts() { nvshmem_quiet(); }

}  // namespace ep_runtime
