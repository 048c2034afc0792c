// Calls of one shape with the same options, from Python arguments to launch without Python in
// between, which takes longer than the kernel.
//
// A plan does only what it was made for. For anything else it returns None having done nothing, and
// the caller's own checks say what is wrong or make another plan.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "tensor_maker.hpp"
#include "tensor_pattern.hpp"

namespace ep_runtime {

// The receive phase of an operation that was only sent. Keeps its tensors alive.
class PendingReceive {
 public:
  PendingReceive(Engine& engine, std::function<void(cudaStream_t)> launch, pybind11::object tensors)
      : engine_(&engine), launch_(std::move(launch)), tensors_(std::move(tensors)) {}

  // False, with nothing launched, when a kernel has recorded a problem.
  bool run(uintptr_t stream) const;

 private:
  Engine* engine_;
  std::function<void(cudaStream_t)> launch_;
  pybind11::object tensors_;
};

// What both kinds of plan are made from. The engine has to outlive the plan.
struct PlanSetting {
  Engine* engine;
  Torch torch;
  int device_index;
  int num_ranks;
  int topk_capacity;
  Sizes sizes;
  uint64_t timeout_ns;
  int num_sms;
};

class DispatchPlan {
 public:
  struct Options {
    bool use_fp8;
    bool round_scale;
    bool use_ue8m0;
  };

  // `outputs`: counts, source info, layout, rows and, with FP8, scales.
  DispatchPlan(const PlanSetting& setting, const std::vector<TensorMaker::Spec>& outputs,
               const Options& options);

  // (recv_x, recv_count, handle, PendingReceive or None), or None.
  pybind11::object call(pybind11::handle x, pybind11::handle topk_idx,
                        pybind11::handle cumulative_stats, pybind11::handle wait_stats,
                        bool only_send, uintptr_t stream) const;

 private:
  PlanSetting setting_;
  Options options_;
  TensorMaker outputs_;
  TensorPattern x_, topk_idx_, cumulative_stats_, wait_stats_;
  pybind11::object max_tokens_, hidden_, num_experts_;
};

class CombinePlan {
 public:
  CombinePlan(const PlanSetting& setting, bool use_logfmt);

  // (combined, PendingReceive or None), or None. `out` and `wait_stats` may be None.
  pybind11::object call(pybind11::handle x, pybind11::handle topk_idx,
                        pybind11::handle topk_weights, pybind11::handle src_info,
                        pybind11::handle layout_range, pybind11::handle out,
                        pybind11::handle wait_stats, bool only_send, uintptr_t stream) const;

 private:
  PlanSetting setting_;
  bool use_logfmt_;
  TensorPattern x_, topk_idx_, topk_weights_, src_info_, layout_range_, out_, wait_stats_;
  int32_t out_dtype_;
};

// Adds both to the module of class Engine.
void bind_call_plans(pybind11::class_<Engine>& engine, pybind11::module_& m);

}  // namespace ep_runtime
