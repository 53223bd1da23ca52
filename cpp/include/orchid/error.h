// The engine's failures. Each is one kind of answer to the caller; none carries tensor contents.
#pragma once

#include <stdexcept>
#include <string>

namespace orchid {

// Base of everything the engine throws on purpose.
class EngineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's tensors do not fit the model: names the tensor, what came and what is accepted.
class InvalidInput : public EngineError {
 public:
  using EngineError::EngineError;
};

// A model file, or the ONNX Runtime library itself, could not be loaded.
class LoadError : public EngineError {
 public:
  using EngineError::EngineError;
};

// The run's token fired before the run ended.
class RunTerminated : public EngineError {
 public:
  using EngineError::EngineError;
};

// ONNX Runtime failed while running a model whose inputs were accepted.
class EngineFault : public EngineError {
 public:
  using EngineError::EngineError;
};

}  // namespace orchid
