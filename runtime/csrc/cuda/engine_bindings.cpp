#include "engine_bindings.hpp"

#include "call_plans.hpp"

namespace py = pybind11;

namespace ep_runtime {
namespace {

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t stream_of(uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

uint64_t nanoseconds(uint64_t microseconds) { return microseconds * 1000; }

void dispatch(Engine& engine, uintptr_t x, uintptr_t topk_idx, uintptr_t recv_x, uintptr_t scales,
              uintptr_t recv_count, uintptr_t src_info, uintptr_t layout_range,
              uintptr_t cumulative_stats, uintptr_t wait_stats, uintptr_t op_epoch, int num_tokens,
              int num_topk, uint32_t max_tokens, uint32_t hidden, uint32_t num_experts,
              bool use_fp8, bool round_scale, bool use_ue8m0, int phases, uint64_t timeout_us,
              int num_sms, uintptr_t stream) {
  DispatchParams params = {};
  params.x = pointer<const uint4>(x);
  params.topk_idx = pointer<const int64_t>(topk_idx);
  params.recv_x = pointer<uint8_t>(recv_x);
  params.scales = pointer<void>(scales);
  params.recv_count = pointer<int>(recv_count);
  params.src_info = pointer<int>(src_info);
  params.layout_range = pointer<int64_t>(layout_range);
  params.cumulative_stats = pointer<int>(cumulative_stats);
  params.wait_stats = pointer<unsigned long long>(wait_stats);
  params.op_epoch = op_epoch == 0 ? engine.scratch_epoch() : pointer<uint64_t>(op_epoch);
  params.timeout_ns = nanoseconds(timeout_us);
  params.num_tokens = num_tokens;
  params.num_topk = num_topk;
  params.phases = phases;
  params.use_fp8 = use_fp8;
  params.round_scale = round_scale;
  params.use_ue8m0 = use_ue8m0;
  engine.dispatch(params, {max_tokens, hidden, num_experts}, num_sms, stream_of(stream));
}

void combine(Engine& engine, uintptr_t x, int64_t x_row_bytes, uintptr_t src_info,
             uintptr_t layout_range, uintptr_t topk_idx, uintptr_t topk_weights, uintptr_t out,
             uintptr_t wait_stats, uintptr_t op_epoch, int num_tokens, int num_topk,
             uint32_t max_tokens, uint32_t hidden, uint32_t num_experts, bool use_logfmt,
             int phases, uint64_t timeout_us, int num_sms, uintptr_t stream) {
  CombineParams params = {};
  params.x = pointer<const uint8_t>(x);
  params.x_row_bytes = x_row_bytes;
  params.src_info = pointer<const int>(src_info);
  params.layout_range = pointer<const int64_t>(layout_range);
  params.topk_idx = pointer<const int64_t>(topk_idx);
  params.topk_weights = pointer<const float>(topk_weights);
  params.out = pointer<uint4>(out);
  params.wait_stats = pointer<unsigned long long>(wait_stats);
  params.op_epoch = op_epoch == 0 ? engine.scratch_epoch() : pointer<uint64_t>(op_epoch);
  params.timeout_ns = nanoseconds(timeout_us);
  params.num_tokens = num_tokens;
  params.num_topk = num_topk;
  params.phases = phases;
  params.use_logfmt = use_logfmt;
  engine.combine(params, {max_tokens, hidden, num_experts}, num_sms, stream_of(stream));
}

py::object take_problem(Engine& engine) {
  const auto record = engine.take_problem();
  if (!record) return py::none();
  return py::make_tuple(record->problem, record->phase, record->peer, record->expert, record->token,
                        record->waited_us);
}

}  // namespace

void bind_operations(py::module_& m) {
  m.attr("ARCHITECTURES") = EP_RUNTIME_CUDA_ARCHITECTURES;
  m.attr("CUDA_VERSION") = CUDART_VERSION;
  // Local to the module: another one may hold an Engine of its own.
  py::class_<Engine> engine(m, "Engine", py::module_local());
  engine.def_property_readonly("num_sms", &Engine::num_sms)
      .def_property_readonly("num_bytes", [](Engine& engine) { return engine.memory().bytes(); })
      .def("address",
           [](Engine& engine, int rank) {
             return reinterpret_cast<uintptr_t>(engine.memory().address(rank));
           })
      .def("start", &Engine::start)
      .def("dispatch", &dispatch)
      .def("combine", &combine)
      .def("clean",
           [](Engine& engine, uint32_t max_tokens, uint32_t hidden, uint32_t num_experts,
              uint64_t timeout_us, uintptr_t stream) {
             engine.clean({max_tokens, hidden, num_experts}, nanoseconds(timeout_us),
                          stream_of(stream));
           })
      .def("set_mask", [](Engine& engine, int rank, bool masked,
                          uintptr_t stream) { engine.set_mask(rank, masked, stream_of(stream)); })
      .def("copy_mask",
           [](Engine& engine, uintptr_t out, uintptr_t stream) {
             engine.copy_mask(pointer<int>(out), stream_of(stream));
           })
      .def("clear_mask",
           [](Engine& engine, uintptr_t stream) { engine.clear_mask(stream_of(stream)); })
      .def("take_problem", &take_problem)
      .def("destroy", &Engine::destroy, py::call_guard<py::gil_scoped_release>());
  bind_call_plans(engine, m);
}

}  // namespace ep_runtime
