// _nvshmem: engines over NVSHMEM's symmetric memory, for ranks on several hosts.
#include <pybind11/stl.h>

#include "engine_bindings.hpp"
#include "nvshmem_memory.hpp"
#include "version.hpp"
#include "world.hpp"

namespace py = pybind11;

namespace ep_runtime {
namespace {

class NvshmemEngine : public Engine {
 public:
  NvshmemEngine(uint64_t address, uint64_t num_bytes, uint64_t mirror,
                const std::vector<int>& queue_pairs, bool only_puts, bool break_order, int device,
                int rank, int num_ranks, bool enable_shrink)
      : Engine(std::make_unique<NvshmemMemory>(address, num_bytes, mirror, queue_pairs, only_puts,
                                               break_order, rank, num_ranks),
               device, rank, num_ranks, enable_shrink) {}
};

py::tuple as_tuple(const world::Version& version) {
  return py::make_tuple(version.major, version.minor, version.patch);
}

}  // namespace
}  // namespace ep_runtime

PYBIND11_MODULE(_nvshmem, m) {
  using namespace ep_runtime;
  m.doc() = "CUDA kernels over NVSHMEM.";
  bind_operations(m);
  m.attr("COMPILED_VERSION") = as_tuple(world::compiled_version());
  m.attr("EXPLICIT_QUEUE_PAIRS") = bool(EP_RUNTIME_EXPLICIT_QUEUE_PAIRS);
  m.def("loaded_version", [] { return as_tuple(world::loaded_version()); });
  m.def("unique_id", [] { return py::bytes(world::unique_id()); });
  m.def("join", &world::join, py::call_guard<py::gil_scoped_release>());
  m.def("allocate", &world::allocate, py::call_guard<py::gil_scoped_release>());
  m.def("zero", &world::zero, py::call_guard<py::gil_scoped_release>());
  m.def("free", &world::free, py::call_guard<py::gil_scoped_release>());
  m.def("mapped", &world::mapped);
  m.def("create_queue_pairs", &world::create_queue_pairs, py::call_guard<py::gil_scoped_release>());
  py::class_<NvshmemEngine, Engine>(m, "NvshmemEngine", py::module_local())
      .def(py::init<uint64_t, uint64_t, uint64_t, const std::vector<int>&, bool, bool, int, int,
                    int, bool>(),
           py::arg("address"), py::arg("num_bytes"), py::arg("mirror"), py::arg("queue_pairs"),
           py::arg("only_puts"), py::arg("break_order"), py::arg("device"), py::arg("rank"),
           py::arg("num_ranks"), py::arg("enable_shrink"));
}
