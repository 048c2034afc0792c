// SPDX-License-Identifier: Apache-2.0
//
// ep_runtime._core: the layout of symmetric memory, the QP plan, sets of new tensors, and what this
// build holds.
#include <pybind11/pybind11.h>

#include "ep_runtime/checked_layout.hpp"
#include "ep_runtime/qp_plan.hpp"
#include "torch_bindings.hpp"

namespace py = pybind11;
using ep_runtime::LowLatencyLayout;
using ep_runtime::QpPlan;

namespace {

void bind_layout(py::module_& m) {
  py::class_<LowLatencyLayout>(m, "LowLatencyLayout")
      .def_readonly("max_tokens", &LowLatencyLayout::max_tokens)
      .def_readonly("hidden", &LowLatencyLayout::hidden)
      .def_readonly("num_ranks", &LowLatencyLayout::num_ranks)
      .def_readonly("num_experts", &LowLatencyLayout::num_experts)
      .def_readonly("local_experts", &LowLatencyLayout::local_experts)
      .def_readonly("topk_capacity", &LowLatencyLayout::topk_capacity)
      .def_readonly("dispatch_row_stride", &LowLatencyLayout::dispatch_row_stride)
      .def_readonly("combine_row_stride", &LowLatencyLayout::combine_row_stride)
      .def_readonly("route_offset", &LowLatencyLayout::route_offset)
      .def_readonly("payload_offset", &LowLatencyLayout::payload_offset)
      .def_readonly("scales_offset", &LowLatencyLayout::scales_offset)
      .def_readonly("ack", &LowLatencyLayout::ack)
      .def_readonly("barrier", &LowLatencyLayout::barrier)
      .def_readonly("dispatch_count", &LowLatencyLayout::dispatch_count)
      .def_readonly("combine_flag", &LowLatencyLayout::combine_flag)
      .def_readonly("dispatch_row", &LowLatencyLayout::dispatch_row)
      .def_readonly("combine_row", &LowLatencyLayout::combine_row)
      .def_readonly("total_bytes", &LowLatencyLayout::total_bytes)
      .def("ack_at", &LowLatencyLayout::ack_at, py::arg("rank"))
      .def("barrier_at", &LowLatencyLayout::barrier_at, py::arg("rank"))
      .def("dispatch_count_at", &LowLatencyLayout::dispatch_count_at, py::arg("slot"),
           py::arg("source_rank"), py::arg("local_expert"))
      .def("combine_flag_at", &LowLatencyLayout::combine_flag_at, py::arg("slot"), py::arg("token"),
           py::arg("k"))
      .def("dispatch_row_at", &LowLatencyLayout::dispatch_row_at, py::arg("slot"),
           py::arg("source_rank"), py::arg("index"))
      .def("combine_row_at", &LowLatencyLayout::combine_row_at, py::arg("slot"), py::arg("token"),
           py::arg("k"));
  m.def("low_latency_layout", &ep_runtime::make_checked_layout,
        py::arg("num_max_dispatch_tokens_per_rank"), py::arg("hidden"), py::arg("num_ranks"),
        py::arg("num_experts"));
  m.attr("MAX_TOPK") = ep_runtime::kMaxTopk;
}

void bind_qp_plan(py::module_& m) {
  py::class_<QpPlan>(m, "QpPlan")
      .def_readonly("qps_per_rank", &QpPlan::qps_per_rank)
      .def_readonly("required_depth", &QpPlan::required_depth)
      .def_readonly("depth", &QpPlan::depth);
  m.def("plan_queue_pairs", &ep_runtime::plan_queue_pairs,
        py::arg("num_max_dispatch_tokens_per_rank"), py::arg("num_ranks"), py::arg("num_experts"));
  m.def("required_qp_depth", &ep_runtime::required_qp_depth,
        py::arg("num_max_dispatch_tokens_per_rank"));
  m.attr("DEFAULT_QP_DEPTH") = ep_runtime::kDefaultQpDepth;
  m.attr("MAX_QP_DEPTH") = ep_runtime::kMaxQpDepth;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  bind_layout(m);
  bind_qp_plan(m);
  ep_runtime::bind_torch(m);
  m.attr("VERSION") = EP_RUNTIME_VERSION;
  m.attr("COMPILER") = EP_RUNTIME_COMPILER;
  m.attr("WITH_CUDA") = static_cast<bool>(EP_RUNTIME_WITH_CUDA);
  m.attr("NVSHMEM_VERSION") = EP_RUNTIME_NVSHMEM_VERSION_TEXT;  // empty without it
}
