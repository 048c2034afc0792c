#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>
#include <stdexcept>

#include "driver.hpp"
#include "version.hpp"
#include "world.hpp"

namespace ep_runtime::world {

namespace {

constexpr size_t kAlignment = 128;

void require_success(int status, const char* what) {
  if (status == 0) return;
  throw std::runtime_error(std::string(what) + " failed with status " + std::to_string(status));
}

}  // namespace

Version compiled_version() {
  return {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION};
}

Version loaded_version() {
  Version version = {};
  nvshmemx_vendor_get_version_info(&version.major, &version.minor, &version.patch);
  return version;
}

std::string unique_id() {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  require_success(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

void join(const std::string& unique_id, int rank, int num_ranks, int device) {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  if (unique_id.size() != sizeof(id)) {
    throw std::runtime_error("the unique id has " + std::to_string(unique_id.size()) +
                             " bytes, this NVSHMEM's have " + std::to_string(sizeof(id)));
  }
  std::memcpy(&id, unique_id.data(), sizeof(id));
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaFree(nullptr), "starting CUDA");
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  require_success(nvshmemx_set_attr_uniqueid_args(rank, num_ranks, &id, &attributes),
                  "nvshmemx_set_attr_uniqueid_args");
  // What nvshmemx_init_attr() does, less its exit() on failure.
  int provided = 0;
  const Version mine = compiled_version();
  require_success(
      nvshmemi_init_thread(NVSHMEM_THREAD_SERIALIZED, &provided, NVSHMEMX_INIT_WITH_UNIQUEID,
                           &attributes, {mine.major, mine.minor, mine.patch}),
      "starting NVSHMEM");
}

uint64_t allocate(uint64_t bytes) {
  void* address = nvshmem_align(kAlignment, bytes);
  if (address == nullptr) return 0;
  zero(reinterpret_cast<uint64_t>(address), bytes);
  return reinterpret_cast<uint64_t>(address);
}

void zero(uint64_t address, uint64_t bytes) {
  check(cudaMemset(reinterpret_cast<void*>(address), 0, bytes), "zeroing symmetric memory");
  check(cudaDeviceSynchronize(), "zeroing symmetric memory");
}

void free(uint64_t address) { nvshmem_free(reinterpret_cast<void*>(address)); }

uint64_t mapped(uint64_t address, int rank) {
  return reinterpret_cast<uint64_t>(nvshmem_ptr(reinterpret_cast<void*>(address), rank));
}

std::vector<int> create_queue_pairs([[maybe_unused]] int count) {
#if EP_RUNTIME_EXPLICIT_QUEUE_PAIRS
  nvshmemx_qp_handle_t* handles = nullptr;
  require_success(nvshmemx_qp_create(count, &handles), "nvshmemx_qp_create");
  if (handles == nullptr) return {};
  std::vector<int> found(handles, handles + count);
  // One answer of "default" means that the transport has no others.
  for (int handle : found) {
    if (handle == NVSHMEMX_QP_DEFAULT) return {};
  }
  return found;
#else
  return {};
#endif
}

}  // namespace ep_runtime::world
