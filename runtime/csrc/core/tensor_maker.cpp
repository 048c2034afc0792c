#include "tensor_maker.hpp"

#include <dlfcn.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace py = pybind11;

namespace ep_runtime {

namespace {

void require_success(int32_t status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("torch could not ") + what);
}

// torch's libraries are loaded, by paths of its own and out of the global scope.
class Libraries {
 public:
  explicit Libraries(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD))
        libraries_.push_back(library);
    }
  }
  ~Libraries() {
    for (void* library : libraries_) dlclose(library);
  }
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  template <typename Function>
  bool find(const char* name, Function& into) const {
    for (void* library : libraries_) {
      if (void* address = dlsym(library, name)) {
        into = reinterpret_cast<Function>(address);
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<void*> libraries_;
};

// THPVariable_Wrap(const at::TensorBase&), and before torch 2.9 by value: either way the argument
// is passed as the address of a TensorBase, which is what a handle is.
constexpr const char* kWrapNames[] = {"_Z16THPVariable_WrapRKN2at10TensorBaseE",
                                      "_Z16THPVariable_WrapN2at10TensorBaseE"};

std::optional<TorchFunctions> find_functions(const Libraries& libraries) {
  TorchFunctions torch = {};
  const bool found =
      libraries.find("aoti_torch_empty_strided", torch.empty_strided) &&
      libraries.find("aoti_torch__reinterpret_tensor", torch.reinterpret) &&
      libraries.find("aoti_torch_delete_tensor_object", torch.destroy) &&
      libraries.find("aoti_torch_device_type_cpu", torch.cpu) &&
      libraries.find("aoti_torch_device_type_cuda", torch.cuda) &&
      (libraries.find(kWrapNames[0], torch.wrap) || libraries.find(kWrapNames[1], torch.wrap));
  if (!found) return std::nullopt;
  return torch;
}

using Spec = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::string, int64_t>;

// Refuses what would be read or computed out of range here; the rest is for torch to refuse.
void check_spec(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                int64_t storage_factor) {
  const auto negative = [](int64_t number) { return number < 0; };
  if (sizes.empty() || sizes.size() != strides.size()) {
    throw std::invalid_argument("a tensor needs a stride for each of one or more sizes, got " +
                                std::to_string(sizes.size()) + " sizes and " +
                                std::to_string(strides.size()) + " strides.");
  }
  if (std::any_of(sizes.begin(), sizes.end(), negative) ||
      std::any_of(strides.begin(), strides.end(), negative)) {
    throw std::invalid_argument("sizes and strides must not be negative.");
  }
  if (storage_factor < 1 || sizes[0] > std::numeric_limits<int64_t>::max() / storage_factor) {
    throw std::invalid_argument("storage_factor must be positive and sizes[0] times it fit, got " +
                                std::to_string(storage_factor) + ".");
  }
}

// None where this torch lacks what is needed.
std::optional<TensorMaker> open_maker(const std::vector<std::string>& paths, int device_index,
                                      const std::vector<Spec>& given) {
  const Libraries libraries(paths);
  const std::optional<TorchFunctions> torch = find_functions(libraries);
  if (!torch) return std::nullopt;
  std::vector<TensorSpec> specs;
  for (const auto& [sizes, strides, dtype, storage_factor] : given) {
    check_spec(sizes, strides, storage_factor);
    int32_t (*code)() = nullptr;
    if (!libraries.find(("aoti_torch_dtype_" + dtype).c_str(), code)) return std::nullopt;
    specs.push_back({sizes, strides, code(), storage_factor});
  }
  return TensorMaker(*torch, device_index, std::move(specs));
}

}  // namespace

TensorMaker::TensorMaker(const TorchFunctions& torch, int device_index,
                         std::vector<TensorSpec> specs)
    : torch_(torch),
      device_type_(device_index < 0 ? torch.cpu() : torch.cuda()),
      device_index_(device_index < 0 ? 0 : device_index),
      specs_(std::move(specs)) {}

py::tuple TensorMaker::make() const {
  py::tuple tensors(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) tensors[i] = make_one(specs_[i]);
  return tensors;
}

py::object TensorMaker::make_one(const TensorSpec& spec) const {
  const auto dimensions = static_cast<int64_t>(spec.sizes.size());
  std::vector<int64_t> stored = spec.sizes;
  stored[0] *= spec.storage_factor;
  TorchFunctions::Tensor tensor = nullptr;
  require_success(torch_.empty_strided(dimensions, stored.data(), spec.strides.data(), spec.dtype,
                                       device_type_, device_index_, &tensor),
                  "allocate a tensor");
  if (spec.storage_factor != 1) {
    TorchFunctions::Tensor whole = std::exchange(tensor, nullptr);
    const int32_t status =
        torch_.reinterpret(whole, dimensions, spec.sizes.data(), spec.strides.data(), 0, &tensor);
    torch_.destroy(whole);
    require_success(status, "make a view");
  }
  PyObject* object = torch_.wrap(tensor);
  torch_.destroy(tensor);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

void bind_tensor_maker(py::module_& m) {
  py::class_<TensorMaker>(m, "TensorMaker").def("make", &TensorMaker::make);
  m.def("open_tensor_maker", &open_maker, py::arg("libraries"), py::arg("device_index"),
        py::arg("specs"));
}

}  // namespace ep_runtime
