// One Buffer's device side: symmetric memory, counters, and the launches that use them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "clean.hpp"
#include "combine.hpp"
#include "dispatch.hpp"
#include "memory.hpp"

namespace ep_runtime {

struct Sizes {
  uint32_t max_tokens;
  uint32_t hidden;
  uint32_t num_experts;
};

// Device memory with the lifetime of its owner.
struct DeviceFree {
  void operator()(void* address) const { cudaFree(address); }
};
struct HostFree {
  void operator()(void* address) const { cudaFreeHost(address); }
};
template <typename T>
using DevicePointer = std::unique_ptr<T, DeviceFree>;
template <typename T>
using HostPointer = std::unique_ptr<T, HostFree>;

class Engine {
 public:
  Engine(std::unique_ptr<Memory> memory, int device, int rank, int num_ranks, bool enable_shrink);

  // std::runtime_error once destroyed.
  Memory& memory();
  int num_sms() const { return num_sms_; }

  // Call once the memory of all peers is known.
  void start();

  // The launches fill in context, layout and sizes; the rest of `params` is the caller's.
  void dispatch(DispatchParams params, const Sizes& sizes, int num_sms, cudaStream_t stream);
  void combine(CombineParams params, const Sizes& sizes, int num_sms, cudaStream_t stream);
  void clean(const Sizes& sizes, uint64_t timeout_ns, cudaStream_t stream);

  void set_mask(int rank, bool masked, cudaStream_t stream);
  void copy_mask(int* out, cudaStream_t stream);
  void clear_mask(cudaStream_t stream);

  // Where launches that send and receive at once leave their epoch.
  uint64_t* scratch_epoch() { return epochs_.get(); }

  // Where a send launch leaves its epoch for its receive launch, unless it is captured: it is used
  // again after kEpochs more, long after the protocol has made sure of the receive.
  uint64_t* next_epoch() { return epochs_.get() + 1 + next_epoch_++ % kEpochs; }

  // The first problem since the last call, if a kernel has recorded one. Does not synchronise.
  std::optional<ProblemRecord> take_problem();
  bool has_problem() const;

  // Waits for this device's work and frees everything.
  void destroy();

 private:
  static constexpr uint32_t kEpochs = 64;

  LowLatencyLayout layout(const Sizes& sizes) const;
  int num_blocks(int wanted) const;

  int device_;
  int rank_;
  int num_ranks_;
  bool enable_shrink_;
  int num_sms_ = 0;
  uint32_t next_epoch_ = 0;
  int shared_bytes_ = 0;  // that a block may have
  std::unique_ptr<Memory> memory_;
  DevicePointer<uint8_t*> peers_;
  DevicePointer<Counters> counters_;
  DevicePointer<int> mask_;
  DevicePointer<uint64_t> epochs_;  // [1 + kEpochs]
  HostPointer<ProblemRecord> problem_;
  DeviceContext context_ = {};
};

}  // namespace ep_runtime
