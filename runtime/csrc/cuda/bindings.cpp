// _cuda: engines over memory that CUDA maps between the processes of one host.
#include "engine_bindings.hpp"
#include "symmetric_memory.hpp"

namespace py = pybind11;

namespace ep_runtime {
namespace {

class PeerEngine : public Engine {
 public:
  PeerEngine(int device, uint64_t num_bytes, int rank, int num_ranks, bool enable_shrink)
      : Engine(std::make_unique<SymmetricMemory>(device, num_bytes, rank, num_ranks), device, rank,
               num_ranks, enable_shrink) {}

  SymmetricMemory& symmetric() { return static_cast<SymmetricMemory&>(memory()); }
};

}  // namespace
}  // namespace ep_runtime

PYBIND11_MODULE(_cuda, m) {
  using namespace ep_runtime;
  m.doc() = "CUDA kernels and symmetric memory of the peer backend.";
  bind_operations(m);
  py::class_<PeerEngine, Engine>(m, "PeerEngine", py::module_local())
      .def(py::init<int, uint64_t, int, int, bool>(), py::arg("device"), py::arg("num_bytes"),
           py::arg("rank"), py::arg("num_ranks"), py::arg("enable_shrink"))
      .def("export_descriptor",
           [](PeerEngine& engine) { return engine.symmetric().export_descriptor(); })
      .def("import_descriptor", [](PeerEngine& engine, int peer, int descriptor) {
        engine.symmetric().import_descriptor(peer, descriptor);
      });
}
