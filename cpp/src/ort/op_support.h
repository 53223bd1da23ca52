// What the custom operators share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "orchid/error.h"
#include "ort/api.h"

namespace orchid {

using Shape = std::vector<std::int64_t>;

inline Shape ShapeOf(const Ort::ConstValue& value) {
  return value.GetTensorTypeAndShapeInfo().GetShape();
}

inline Shape MatrixShape(const Ort::ConstValue& value, const char* name) {
  Shape shape = ShapeOf(value);
  if (shape.size() != 2) {
    throw InvalidInput(std::string(name) + " has rank " + std::to_string(shape.size()) +
                       "; accepted is 2");
  }
  return shape;
}

// Exceptions must not cross ONNX Runtime's C frames, so they become statuses here.
template <typename F>
OrtStatusPtr Guarded(F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const InvalidInput& e) {
    return Ort::GetApi().CreateStatus(ORT_INVALID_ARGUMENT, e.what());
  } catch (const std::exception& e) {
    return Ort::GetApi().CreateStatus(ORT_FAIL, e.what());
  }
}

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr auto kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

// What the operators share: CPU, one output of the first input's type, status-based errors.
template <typename Op, typename Kernel>
struct OpBase : Ort::CustomOpBase<Op, Kernel, true> {
  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return Guarded([&] { *kernel = new Kernel(info); });
  }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  std::size_t GetOutputTypeCount() const { return 1; }
};

// An optional attribute, float or std::int64_t.
template <typename T>
T OptionalAttribute(const Ort::ConstKernelInfo& info, const char* name, T absent) {
  // ONNX Runtime has no "has attribute": absence is its error.
  try {
    return info.GetAttribute<T>(name);
  } catch (const Ort::Exception&) {
    return absent;
  }
}

}  // namespace orchid
