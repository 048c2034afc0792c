#include "call_plans.hpp"

#include <pybind11/stl.h>

#include "none_if_unsupported.hpp"

namespace py = pybind11;

namespace ep_runtime {

namespace {

TensorPattern pattern(const PlanSetting& setting, const char* dtype, std::vector<int64_t> sizes) {
  return {setting.torch, setting.device_index, dtype, std::move(sizes)};
}

int64_t local_experts(const PlanSetting& setting) {
  return int64_t{setting.sizes.num_experts} / setting.num_ranks;
}

int64_t rows(const PlanSetting& setting) {
  return int64_t{setting.num_ranks} * setting.sizes.max_tokens;
}

// Like TensorPattern::match; None is matched too, with no address.
bool match_optional(const Torch& torch, const TensorPattern& pattern, py::handle object,
                    TensorFields& fields) {
  if (object.is_none()) {
    fields = {};
    return true;
  }
  return pattern.match(torch, object, fields);
}

// int64 [T, K] with as many tokens as the buffer takes.
bool match_topk(const PlanSetting& setting, const TensorPattern& pattern, py::handle object,
                TensorFields& fields) {
  return pattern.match(setting.torch, object, fields) &&
         fields.sizes[0] <= int64_t{setting.sizes.max_tokens} && fields.sizes[1] >= 1 &&
         fields.sizes[1] <= setting.topk_capacity;
}

template <typename T>
T* address(const TensorFields& fields) {
  return static_cast<T*>(fields.data);
}

template <typename T>
T* address(const MadeTensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// What is captured runs again in an order of its own.
bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // it must not pass for a later launch's
  return true;
}

// What a launch of either kind takes from the plan.
template <typename Params>
void set_common(Params& params, const PlanSetting& setting, const TensorFields& selections,
                bool only_send) {
  params.op_epoch = only_send ? setting.engine->next_epoch() : setting.engine->scratch_epoch();
  params.phases = only_send ? kSend : kSend | kReceive;
  params.timeout_ns = setting.timeout_ns;
  params.num_tokens = static_cast<int>(selections.sizes[0]);
  params.num_topk = static_cast<int>(selections.sizes[1]);
}

template <typename Params>
using Launch = void (Engine::*)(Params, const Sizes&, int, cudaStream_t);

// Launches `params`; the receive phase that is then left, holding `tensors`, or None.
template <typename Params>
py::object launch(const PlanSetting& setting, Launch<Params> operation, Params params,
                  cudaStream_t stream, const py::object& tensors) {
  const auto run = [engine = setting.engine, operation, sizes = setting.sizes,
                    num_sms = setting.num_sms](const Params& given, cudaStream_t on) {
    (engine->*operation)(given, sizes, num_sms, on);
  };
  run(params, stream);
  if (params.phases & kReceive) return py::none();
  params.phases = kReceive;
  return py::cast(
      PendingReceive(*setting.engine, [=](cudaStream_t on) { run(params, on); }, tensors));
}

}  // namespace

bool PendingReceive::run(uintptr_t stream) const {
  if (engine_->has_problem()) return false;
  launch_(reinterpret_cast<cudaStream_t>(stream));
  return true;
}

DispatchPlan::DispatchPlan(const PlanSetting& setting,
                           const std::vector<TensorMaker::Spec>& outputs, const Options& options)
    : setting_(setting),
      options_(options),
      outputs_(setting.torch, setting.device_index, outputs),
      x_(pattern(setting, "bfloat16", {-1, setting.sizes.hidden})),
      topk_idx_(pattern(setting, "int64", {-1, -1})),
      cumulative_stats_(pattern(setting, "int32", {local_experts(setting)})),
      wait_stats_(pattern(setting, "int64", {setting.num_ranks})),
      max_tokens_(py::int_(setting.sizes.max_tokens)),
      hidden_(py::int_(setting.sizes.hidden)),
      num_experts_(py::int_(setting.sizes.num_experts)) {
  if (outputs_.size() != (options.use_fp8 ? 5 : 4))
    throw std::invalid_argument("a dispatch has four outputs, with FP8 five.");
}

py::object DispatchPlan::call(py::handle x, py::handle topk_idx, py::handle cumulative_stats,
                              py::handle wait_stats, bool only_send, uintptr_t stream) const {
  const Torch& torch = setting_.torch;
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  TensorFields tokens, selections, cumulative, waits;
  if (is_capturing(on) || setting_.engine->has_problem() || !x_.match(torch, x, tokens) ||
      !match_topk(setting_, topk_idx_, topk_idx, selections) ||
      selections.sizes[0] != tokens.sizes[0] ||
      !match_optional(torch, cumulative_stats_, cumulative_stats, cumulative) ||
      !match_optional(torch, wait_stats_, wait_stats, waits)) {
    return py::none();
  }
  MadeTensor made[5] = {};
  try {
    outputs_.make(made);
  } catch (const AllocationFailed&) {
    return py::none();
  }
  const auto& [recv_count, src_info, layout_range, rows, scales] = made;

  DispatchParams params = {};
  params.x = address<const uint4>(tokens);
  params.topk_idx = address<const int64_t>(selections);
  params.recv_x = address<uint8_t>(rows);
  params.scales = scales.data;  // null without FP8
  params.recv_count = address<int>(recv_count);
  params.src_info = address<int>(src_info);
  params.layout_range = address<int64_t>(layout_range);
  params.cumulative_stats = address<int>(cumulative);
  params.wait_stats = address<unsigned long long>(waits);
  set_common(params, setting_, selections, only_send);
  params.use_fp8 = options_.use_fp8;
  params.round_scale = options_.round_scale;
  params.use_ue8m0 = options_.use_ue8m0;
  const py::object recv_x =
      options_.use_fp8 ? py::object(py::make_tuple(rows.object, scales.object)) : rows.object;
  const py::tuple handle =
      py::make_tuple(src_info.object, layout_range.object, max_tokens_, hidden_, num_experts_);
  const py::object pending =
      launch(setting_, &Engine::dispatch, params, on,
             only_send ? py::make_tuple(x, topk_idx, cumulative_stats, wait_stats, recv_x,
                                        recv_count.object, handle)
                       : py::tuple());
  return py::make_tuple(recv_x, recv_count.object, handle, pending);
}

CombinePlan::CombinePlan(const PlanSetting& setting, bool use_logfmt)
    : setting_(setting),
      use_logfmt_(use_logfmt),
      x_(pattern(setting, "bfloat16",
                 {local_experts(setting), rows(setting), setting.sizes.hidden})),
      topk_idx_(pattern(setting, "int64", {-1, -1})),
      topk_weights_(pattern(setting, "float32", {-1, -1})),
      src_info_(pattern(setting, "int32", {local_experts(setting), rows(setting)})),
      layout_range_(pattern(setting, "int64", {local_experts(setting), setting.num_ranks})),
      out_(pattern(setting, "bfloat16", {-1, setting.sizes.hidden})),
      wait_stats_(pattern(setting, "int64", {setting.num_ranks})),
      out_dtype_(setting.torch.dtype("bfloat16")) {}

py::object CombinePlan::call(py::handle x, py::handle topk_idx, py::handle topk_weights,
                             py::handle src_info, py::handle layout_range, py::handle out,
                             py::handle wait_stats, bool only_send, uintptr_t stream) const {
  const Torch& torch = setting_.torch;
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  TensorFields expert_rows, selections, weights, sources, layout, combined, waits;
  if (is_capturing(on) || setting_.engine->has_problem() || !x_.match(torch, x, expert_rows) ||
      !match_topk(setting_, topk_idx_, topk_idx, selections) ||
      !topk_weights_.match(torch, topk_weights, weights) ||
      weights.sizes[0] != selections.sizes[0] || weights.sizes[1] != selections.sizes[1] ||
      !src_info_.match(torch, src_info, sources) ||
      !layout_range_.match(torch, layout_range, layout) ||
      !match_optional(torch, wait_stats_, wait_stats, waits) ||
      !match_optional(torch, out_, out, combined)) {
    return py::none();
  }
  const int64_t num_tokens = selections.sizes[0], hidden = setting_.sizes.hidden;
  if (!out.is_none() && combined.sizes[0] != num_tokens) return py::none();
  MadeTensor result = {py::reinterpret_borrow<py::object>(out), combined.data};
  if (out.is_none()) {
    try {
      result = torch.make({num_tokens, hidden}, out_dtype_,
                          torch.device_type(setting_.device_index), setting_.device_index);
    } catch (const AllocationFailed&) {
      return py::none();
    }
  }

  CombineParams params = {};
  params.x = address<const uint8_t>(expert_rows);
  params.x_row_bytes = hidden * static_cast<int64_t>(sizeof(uint16_t));
  params.src_info = address<const int>(sources);
  params.layout_range = address<const int64_t>(layout);
  params.topk_idx = address<const int64_t>(selections);
  params.topk_weights = address<const float>(weights);
  params.out = address<uint4>(result);
  params.wait_stats = address<unsigned long long>(waits);
  set_common(params, setting_, selections, only_send);
  params.use_logfmt = use_logfmt_;
  const py::object pending =
      launch(setting_, &Engine::combine, params, on,
             only_send ? py::make_tuple(x, topk_idx, topk_weights, src_info, layout_range,
                                        result.object, wait_stats)
                       : py::tuple());
  return py::make_tuple(result.object, pending);
}

namespace {

DispatchPlan open_dispatch(const PlanSetting& setting,
                           const std::vector<TensorMaker::Spec>& outputs, bool use_fp8,
                           bool round_scale, bool use_ue8m0) {
  return {setting, outputs, {use_fp8, round_scale, use_ue8m0}};
}

CombinePlan open_combine(const PlanSetting& setting, bool use_logfmt) {
  return {setting, use_logfmt};
}

PlanSetting open_setting(Engine& engine, const std::vector<std::string>& libraries,
                         py::handle tensor_type, int device_index, int num_ranks, int topk_capacity,
                         uint32_t max_tokens, uint32_t hidden, uint32_t num_experts,
                         uint64_t timeout_us, int num_sms) {
  return {&engine,       Torch(libraries, tensor_type),     device_index,      num_ranks,
          topk_capacity, {max_tokens, hidden, num_experts}, timeout_us * 1000, num_sms};
}

}  // namespace

void bind_call_plans(py::class_<Engine>& engine, py::module_& m) {
  py::class_<PendingReceive>(m, "PendingReceive", py::module_local())
      .def("run", &PendingReceive::run);
  py::class_<DispatchPlan>(m, "DispatchPlan", py::module_local())
      .def("__call__", &DispatchPlan::call);
  py::class_<CombinePlan>(m, "CombinePlan", py::module_local()).def("__call__", &CombinePlan::call);
  py::class_<PlanSetting>(m, "PlanSetting", py::module_local())
      .def("dispatch", none_if_unsupported(&open_dispatch), py::keep_alive<0, 1>())
      .def("combine", none_if_unsupported(&open_combine), py::keep_alive<0, 1>());
  engine.def("plan_setting", none_if_unsupported(&open_setting), py::keep_alive<0, 1>());
}

}  // namespace ep_runtime
