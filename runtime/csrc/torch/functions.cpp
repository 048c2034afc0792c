#include "functions.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>
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

  template <typename Function>
  void require(const char* name, Function& into) const {
    if (!find(name, into)) throw UnsupportedTorch(std::string("torch has no ") + name);
  }

 private:
  std::vector<void*> libraries_;
};

// THPVariable_Wrap(const at::TensorBase&), and before torch 2.9 by value: either way the argument
// is passed as the address of a TensorBase, which is what a handle is.
constexpr const char* kWrapNames[] = {"_Z16THPVariable_WrapRKN2at10TensorBaseE",
                                      "_Z16THPVariable_WrapN2at10TensorBaseE"};

// A new reference to the number under `name`, or null with no Python error left.
py::object attribute(py::handle object, py::handle name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

}  // namespace

Torch::Torch(const std::vector<std::string>& libraries, py::handle tensor_type)
    : libraries_(libraries),
      tensor_type_(py::reinterpret_borrow<py::object>(tensor_type)),
      implementation_name_(
          py::reinterpret_steal<py::object>(PyUnicode_InternFromString("_cdata"))) {
  const Libraries loaded(libraries);
  loaded.require("aoti_torch_empty_strided", empty_strided_);
  loaded.require("aoti_torch__alloc_from_pool", alloc_from_pool_);
  loaded.require("aoti_torch_dtype_element_size", element_size_);
  loaded.require("aoti_torch_delete_tensor_object", destroy_);
  loaded.require("aoti_torch_device_type_cpu", cpu_);
  loaded.require("aoti_torch_device_type_cuda", cuda_);
  loaded.require("aoti_torch_get_data_ptr", data_);
  loaded.require("aoti_torch_get_dtype", dtype_);
  loaded.require("aoti_torch_get_device_type", device_type_);
  loaded.require("aoti_torch_get_device_index", device_index_);
  loaded.require("aoti_torch_get_dim", dimensions_);
  loaded.require("aoti_torch_get_sizes", sizes_);
  loaded.require("aoti_torch_get_strides", strides_);
  if (!loaded.find(kWrapNames[0], wrap_)) loaded.require(kWrapNames[1], wrap_);
  byte_ = dtype("uint8");
  if (!reads_what_it_makes()) throw UnsupportedTorch("Tensor._cdata is not what it was");
}

// Whether `_cdata` is the TensorImpl's address, as read() takes it to be; nothing is read from
// memory that isn't known to be a tensor.
bool Torch::reads_what_it_makes() const {
  const Handle tensor = allocate({1}, byte_, cpu_(), 0);
  void* const implementation = *static_cast<void**>(tensor);
  const py::object object = as_object(tensor);
  const py::object number = attribute(object, implementation_name_);
  if (!number || !PyLong_Check(number.ptr())) return false;
  return PyLong_AsVoidPtr(number.ptr()) == implementation &&
         Py_TYPE(object.ptr()) == reinterpret_cast<PyTypeObject*>(tensor_type_.ptr());
}

int32_t Torch::dtype(const std::string& name) const {
  int32_t (*code)() = nullptr;
  Libraries(libraries_).require(("aoti_torch_dtype_" + name).c_str(), code);
  return code();
}

Torch::Handle Torch::allocate(const std::vector<int64_t>& sizes, int32_t dtype, int32_t device_type,
                              int32_t device_index) const {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, sizes[i]);
  }
  Handle tensor = nullptr;
  if (empty_strided_(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                     device_type, device_index, &tensor) != 0) {
    throw AllocationFailed("torch could not allocate a tensor");
  }
  return tensor;
}

// Takes the handle over.
py::object Torch::as_object(Handle tensor) const {
  PyObject* object = wrap_(tensor);
  destroy_(tensor);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

MadeTensor Torch::make(const std::vector<int64_t>& sizes, int32_t dtype, int32_t device_type,
                       int32_t device_index) const {
  const Handle tensor = allocate(sizes, dtype, device_type, device_index);
  void* data = nullptr;
  const int32_t status = data_(tensor, &data);
  py::object object = as_object(tensor);
  require_success(status, "say where a tensor is");
  return {std::move(object), data};
}

void Torch::make_over_block(int64_t bytes, const TensorPlace* places, size_t count,
                            int32_t device_type, int32_t device_index, MadeTensor* made) const {
  const Handle block = allocate({bytes}, byte_, device_type, device_index);
  void* start = nullptr;
  int32_t status = data_(block, &start);
  for (size_t i = 0; i < count && status == 0; ++i) {
    const TensorPlace& place = places[i];
    Handle tensor = nullptr;
    status =
        alloc_from_pool_(block, place.offset, place.dtype, static_cast<int64_t>(place.sizes.size()),
                         place.sizes.data(), place.strides.data(), &tensor);
    if (status == 0) made[i] = {as_object(tensor), static_cast<uint8_t*>(start) + place.offset};
  }
  destroy_(block);
  require_success(status, "lay a tensor over a block");
}

bool Torch::read(py::handle object, TensorFields& fields) const {
  // A subclass may answer for its attributes as it likes.
  if (Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(tensor_type_.ptr())) return false;
  const py::object number = attribute(object, implementation_name_);
  if (!number) return false;
  void* implementation = PyLong_AsVoidPtr(number.ptr());
  if (implementation == nullptr) {
    PyErr_Clear();
    return false;
  }
  const Handle tensor = &implementation;
  TensorFields read = {};
  int64_t *sizes = nullptr, *strides = nullptr;
  const bool done = data_(tensor, &read.data) == 0 && dtype_(tensor, &read.dtype) == 0 &&
                    device_type_(tensor, &read.device_type) == 0 &&
                    device_index_(tensor, &read.device_index) == 0 &&
                    dimensions_(tensor, &read.dimensions) == 0 && sizes_(tensor, &sizes) == 0 &&
                    strides_(tensor, &strides) == 0;
  if (!done) return false;
  read.sizes = sizes;
  read.strides = strides;
  fields = read;
  return true;
}

}  // namespace ep_runtime
