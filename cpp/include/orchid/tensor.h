// Value types that cross the engine's border: element types, tensor declarations, borrowed feeds.
// Plain values; safe to copy between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace orchid {

enum class DType {
  kFloat32,
  kFloat64,
  kFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
  kString,
  kOther,  // an element type the engine does not serve
};

// The NumPy name of a type ("float32", "string" for kString, "unsupported" for kOther).
const char* Name(DType dtype);

// Bytes of one element; 0 for kString and kOther.
std::size_t ItemSize(DType dtype);

// A model's declaration of one input or output.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kOther;
  std::vector<std::int64_t> shape;     // -1 where free
  std::vector<std::string> dim_names;  // the symbolic name of a free dimension, or empty
};

// One tensor the caller offers. Borrows everything: the memory must stay alive and unchanged until
// the call that takes the feed returns. `data` is C-contiguous, aligned to its element; string
// tensors have `data == nullptr` and `strings` of product(shape) entries.
struct Feed {
  std::string name;
  DType dtype = DType::kOther;
  std::string dtype_text;  // how the caller calls its type, for messages
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
  const std::vector<std::string>* strings = nullptr;
};

// Caller-owned memory one output is written into; same rules as Feed, and exclusive to the run.
struct Destination {
  std::string name;
  DType dtype = DType::kOther;
  std::string dtype_text;
  std::vector<std::int64_t> shape;
  void* data = nullptr;
};

// product(shape); the empty shape is a scalar, so 1.
std::size_t ElementCount(const std::vector<std::int64_t>& shape);

// "[2, ?, 768]", with symbolic names where there are any.
std::string ShapeText(const std::vector<std::int64_t>& shape,
                      const std::vector<std::string>& dim_names = {});

}  // namespace orchid
