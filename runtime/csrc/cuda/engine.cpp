#include "engine.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "driver.hpp"

namespace ep_runtime {

namespace {

// Static shared memory of the kernels, rounded up.
constexpr int kStaticSharedBytes = 2048;

template <typename T>
DevicePointer<T> allocate(size_t count) {
  void* address = nullptr;
  check(cudaMalloc(&address, count * sizeof(T)), "allocating device memory");
  DevicePointer<T> owner(static_cast<T*>(address));
  check(cudaMemset(address, 0, count * sizeof(T)), "zeroing device memory");
  return owner;
}

}  // namespace

Engine::Engine(std::unique_ptr<Memory> memory, int device, int rank, int num_ranks,
               bool enable_shrink)
    : device_(device),
      rank_(rank),
      num_ranks_(num_ranks),
      enable_shrink_(enable_shrink),
      memory_(std::move(memory)) {
  check(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  shared_bytes_ -= kStaticSharedBytes;
  check(prepare_dispatch(shared_bytes_), "preparing dispatch");
  check(prepare_combine(shared_bytes_), "preparing combine");
  peers_ = allocate<uint8_t*>(num_ranks);
  counters_ = allocate<Counters>(1);
  mask_ = allocate<int>(num_ranks);
  epochs_ = allocate<uint64_t>(1 + kEpochs);
  void* record = nullptr;
  check(cudaHostAlloc(&record, sizeof(ProblemRecord), cudaHostAllocMapped | cudaHostAllocPortable),
        "allocating pinned host memory");
  problem_.reset(static_cast<ProblemRecord*>(record));
  *problem_ = {};
}

Memory& Engine::memory() {
  if (!memory_) throw std::runtime_error("the buffer is destroyed");
  return *memory_;
}

void Engine::start() {
  std::vector<uint8_t*> peers(num_ranks_);
  for (int rank = 0; rank < num_ranks_; ++rank) peers[rank] = memory().address(rank);
  check(
      cudaMemcpy(peers_.get(), peers.data(), num_ranks_ * sizeof(uint8_t*), cudaMemcpyHostToDevice),
      "copying peer addresses");
  void* device_record = nullptr;
  check(cudaHostGetDevicePointer(&device_record, problem_.get(), 0), "cudaHostGetDevicePointer");
  context_.peers = peers_.get();
  std::copy_n(peers.begin(), std::min(num_ranks_, kInlinePeers), context_.inline_peers);
  context_.local = peers[rank_];
  context_.counters = counters_.get();
  context_.mask = mask_.get();
  context_.problem = static_cast<ProblemRecord*>(device_record);
  context_.puts = memory().puts();
  context_.rank = rank_;
  context_.num_ranks = num_ranks_;
  context_.enable_shrink = enable_shrink_;
  check(cudaDeviceSynchronize(), "starting the runtime");
}

LowLatencyLayout Engine::layout(const Sizes& sizes) const {
  if (context_.peers == nullptr) throw std::runtime_error("the buffer is destroyed");
  const LowLatencyLayout layout =
      make_layout(sizes.max_tokens, sizes.hidden, num_ranks_, sizes.num_experts);
  if (layout.total_bytes > memory_->bytes()) {
    throw std::runtime_error(
        "num_rdma_bytes is too small: this shape needs " + std::to_string(layout.total_bytes) +
        " bytes of symmetric memory, the buffer has " + std::to_string(memory_->bytes()));
  }
  const uint64_t shared = std::max(dispatch_shared_bytes(layout), combine_shared_bytes(layout));
  if (shared > static_cast<uint64_t>(shared_bytes_)) {
    throw std::runtime_error("num_experts is too large: its counts need " + std::to_string(shared) +
                             " bytes of shared memory, a block has " +
                             std::to_string(shared_bytes_));
  }
  return layout;
}

int Engine::num_blocks(int wanted) const {
  return wanted <= 0 ? num_sms_ : std::min(wanted, num_sms_);
}

namespace {

template <typename Params>
void fill_sizes(Params& params, const LowLatencyLayout& layout, const DeviceContext& context) {
  params.context = context;
  params.layout = layout;
  params.hidden = static_cast<int>(layout.hidden);
  params.num_experts = static_cast<int>(layout.num_experts);
  params.experts_per_rank = static_cast<int>(layout.local_experts);
  params.max_tokens = static_cast<int>(layout.max_tokens);
}

}  // namespace

void Engine::dispatch(DispatchParams params, const Sizes& sizes, int num_sms, cudaStream_t stream) {
  fill_sizes(params, layout(sizes), context_);
  check(launch_dispatch(params, num_blocks(num_sms), shared_bytes_, stream), "launching dispatch");
}

void Engine::combine(CombineParams params, const Sizes& sizes, int num_sms, cudaStream_t stream) {
  fill_sizes(params, layout(sizes), context_);
  check(launch_combine(params, num_blocks(num_sms), stream), "launching combine");
}

void Engine::clean(const Sizes& sizes, uint64_t timeout_ns, cudaStream_t stream) {
  const CleanParams params = {context_, layout(sizes), timeout_ns};
  check(launch_clean(params, stream), "launching clean");
}

void Engine::set_mask(int rank, bool masked, cudaStream_t stream) {
  if (rank < 0 || rank >= num_ranks_) throw std::runtime_error("rank is out of range");
  // Little-endian 0 or 1: the upper bytes are zero already.
  check(cudaMemsetAsync(mask_.get() + rank, masked, 1, stream), "masking a rank");
}

void Engine::copy_mask(int* out, cudaStream_t stream) {
  check(
      cudaMemcpyAsync(out, mask_.get(), num_ranks_ * sizeof(int), cudaMemcpyDeviceToDevice, stream),
      "reading the mask");
}

void Engine::clear_mask(cudaStream_t stream) {
  check(cudaMemsetAsync(mask_.get(), 0, num_ranks_ * sizeof(int), stream), "clearing the mask");
}

bool Engine::has_problem() const {
  if (!problem_) return false;
  const volatile uint32_t& state = problem_->state;
  return state == 2;
}

std::optional<ProblemRecord> Engine::take_problem() {
  if (!has_problem()) return std::nullopt;
  const ProblemRecord record = *problem_;
  volatile uint32_t& state = problem_->state;
  state = 0;
  return record;
}

void Engine::destroy() {
  if (!memory_) return;
  cudaSetDevice(device_);
  // After a device fault this fails; the memory goes with the context then.
  cudaDeviceSynchronize();
  context_ = {};
  memory_.reset();
  peers_.reset();
  counters_.reset();
  mask_.reset();
  epochs_.reset();
  problem_.reset();
}

}  // namespace ep_runtime
