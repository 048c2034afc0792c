// What the kernels of one Buffer share: symmetric memory, counters, masks and the problem record.
#pragma once

#include <cstdint>

#include "ep_runtime/layout.hpp"

namespace ep_runtime {

// Bits of a launch's `phases`.
constexpr int kSend = 1;
constexpr int kReceive = 2;

enum class Phase : int {
  kDispatchSend = 1,
  kDispatchReceive,
  kCombineSend,
  kCombineReceive,
  kClean
};

enum class Problem : int {
  kTimeout = 1,       // a peer did not arrive before the deadline
  kExpertOutOfRange,  // topk_idx holds a value outside [-1, num_experts)
  kTooManyRows,       // duplicates in top-k rows: more than M rows for one expert
};

// Lives in pinned host memory: kernels write the first problem, the host reads without a sync.
struct ProblemRecord {
  uint32_t state;  // 0 free, 1 being written, 2 complete
  int problem;
  int phase;
  int peer;
  int expert;
  int token;
  uint64_t waited_us;
};

// Each launch adds exactly kTicket over its blocks, so `counter / kTicket` counts completed
// launches without any launch having to reset it, and a graph replay counts like a first run.
constexpr uint64_t kTicket = 1ull << 20;

struct Counters {
  uint64_t dispatch_sends;
  uint64_t combine_sends;
  uint64_t cleans;
  uint64_t dispatch_receives[2];  // by slot
  uint64_t combine_receives[2];
};

// For peers that plain stores don't reach; see device/put.cuh.
struct Puts {
  uint8_t* mirror;         // laid out like symmetric memory, holds what is on its way; null: unused
  const int* queue_pairs;  // handles, one per local expert; null: the transport chooses
  int num_queue_pairs;
  int break_order;  // for tests: publish rows before their data
};

// So many peer addresses travel with a launch: reading them costs no trip to memory.
constexpr int kInlinePeers = 16;

struct DeviceContext {
  uint8_t* const* peers;  // [num_ranks] memory of every rank, mapped here, or null: only by puts
  uint8_t* inline_peers[kInlinePeers];
  uint8_t* local;  // peers[rank]
  Counters* counters;
  int* mask;  // [num_ranks]
  ProblemRecord* problem;
  Puts puts;
  int rank;
  int num_ranks;
  int enable_shrink;
};

}  // namespace ep_runtime
