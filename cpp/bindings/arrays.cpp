#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bindings.h"
#include "orchid/error.h"

namespace orchid::bindings {
namespace {

constexpr int kPlain = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;

bool ForeignOrder(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  return order == (PY_BIG_ENDIAN != 0 ? '<' : '>');
}

DType FromNumpy(const py::dtype& dtype) {
  const auto size = dtype.itemsize();
  switch (dtype.kind()) {
    case 'f':
      return size == 4   ? DType::kFloat32
             : size == 8 ? DType::kFloat64
             : size == 2 ? DType::kFloat16
                         : DType::kOther;
    case 'i':
      return size == 8   ? DType::kInt64
             : size == 4 ? DType::kInt32
             : size == 2 ? DType::kInt16
                         : DType::kInt8;
    case 'u':
      return size == 8   ? DType::kUint64
             : size == 4 ? DType::kUint32
             : size == 2 ? DType::kUint16
                         : DType::kUint8;
    case 'b':
      return DType::kBool;
    case 'O':
    case 'U':
    case 'S':
      return DType::kString;
    default:
      return DType::kOther;
  }
}

std::vector<std::int64_t> ShapeOf(const py::array& array) {
  return std::vector<std::int64_t>(array.shape(), array.shape() + array.ndim());
}

std::string DTypeText(DType dtype, const py::dtype& numpy) {
  return dtype == DType::kOther ? std::string(py::str(numpy)) : std::string(Name(dtype));
}

// surrogateescape both ways: any bytes survive the round trip through str.
std::string StringFrom(const std::string& tensor, PyObject* item) {
  if (PyBytes_Check(item)) {
    return std::string(PyBytes_AS_STRING(item), static_cast<std::size_t>(PyBytes_GET_SIZE(item)));
  }
  if (!PyUnicode_Check(item)) {
    throw InvalidInput("input '" + tensor + "' holds a " + Py_TYPE(item)->tp_name +
                       "; accepted are str and bytes");
  }
  const auto encoded =
      py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(item, "utf-8", "surrogateescape"));
  if (!encoded) {
    PyErr_Clear();
    throw InvalidInput("input '" + tensor + "' holds a str that has no UTF-8 form");
  }
  return std::string(encoded);
}

std::vector<std::string> StringsOf(const std::string& tensor, const py::array& array) {
  auto* const* items = static_cast<PyObject* const*>(array.data());
  std::vector<std::string> strings;
  strings.reserve(static_cast<std::size_t>(array.size()));
  for (py::ssize_t i = 0; i < array.size(); ++i) strings.push_back(StringFrom(tensor, items[i]));
  return strings;
}

py::object DictGet(const py::dict& mapping, const std::string& name) {
  const py::str key(name);
  PyObject* found = PyDict_GetItemWithError(mapping.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(found);
}

}  // namespace

HeldFeeds HoldFeeds(const std::vector<TensorSpec>& specs, const py::dict& mapping) {
  HeldFeeds held;
  held.feeds.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    const py::object value = DictGet(mapping, spec.name);
    if (!value) continue;
    if (!py::isinstance<py::array>(value)) {
      throw InvalidInput("input '" + spec.name + "' is not an array but a " +
                         Py_TYPE(value.ptr())->tp_name);
    }
    py::array array = py::array::ensure(value, kPlain);
    if (!array) throw InvalidInput("input '" + spec.name + "' cannot be made contiguous");
    if (ForeignOrder(array.dtype())) {
      array = array.attr("astype")(array.dtype().attr("newbyteorder")("=")).cast<py::array>();
    }
    Feed feed;
    feed.name = spec.name;
    feed.dtype = FromNumpy(array.dtype());
    feed.dtype_text = DTypeText(feed.dtype, array.dtype());
    feed.shape = ShapeOf(array);
    if (feed.dtype == DType::kString && spec.dtype == DType::kString) {
      if (array.dtype().kind() != 'O') array = array.attr("astype")("O").cast<py::array>();
      held.strings.push_back(StringsOf(spec.name, array));
      feed.strings = &held.strings.back();
    } else {
      feed.data = array.data();
    }
    held.feeds.push_back(std::move(feed));
    held.arrays.push_back(std::move(array));
  }
  return held;
}

HeldDestinations HoldDestinations(const py::dict& mapping) {
  HeldDestinations held;
  for (const auto& [key, value] : mapping) {
    const auto name = key.cast<std::string>();
    if (!py::isinstance<py::array>(value)) {
      throw InvalidInput("output '" + name + "' is not an array but a " +
                         Py_TYPE(value.ptr())->tp_name);
    }
    auto array = py::reinterpret_borrow<py::array>(value);
    if ((array.flags() & kPlain) != kPlain || !array.writeable() || ForeignOrder(array.dtype())) {
      throw InvalidInput(
          "output '" + name +
          "' cannot be written in place; accepted is a writeable C-contiguous array");
    }
    Destination destination;
    destination.name = name;
    destination.dtype = FromNumpy(array.dtype());
    destination.dtype_text = DTypeText(destination.dtype, array.dtype());
    destination.shape = ShapeOf(array);
    destination.data = array.mutable_data();
    held.destinations.push_back(std::move(destination));
    held.arrays.push_back(std::move(array));
  }
  return held;
}

py::object ToPython(Output& output, const HeldDestinations& held) {
  if (output.preallocated >= 0) return held.arrays[static_cast<std::size_t>(output.preallocated)];
  if (output.dtype == DType::kString) {
    py::array array(py::dtype("O"), output.shape);
    auto** items = static_cast<PyObject**>(array.mutable_data());
    for (std::size_t i = 0; i < output.strings.size(); ++i) {
      const std::string& text = output.strings[i];
      PyObject* item = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                            "surrogateescape");
      if (item == nullptr) throw py::error_already_set();
      Py_XDECREF(items[i]);
      items[i] = item;
    }
    return array;
  }
  unsigned char* data = output.owned.get();
  const py::capsule owner(data, [](void* owned) { delete[] static_cast<unsigned char*>(owned); });
  output.owned.release();
  return py::array(py::dtype(Name(output.dtype)), output.shape, data, owner);
}

py::tuple Describe(const std::vector<TensorSpec>& specs) {
  py::tuple described(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    described[i] =
        py::make_tuple(specs[i].name, Name(specs[i].dtype), py::tuple(py::cast(specs[i].shape)));
  }
  return described;
}

}  // namespace orchid::bindings
