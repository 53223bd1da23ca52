// The process's RunMemory as ONNX Runtime's allocator.
#pragma once

#include "ort/api.h"

namespace orchid {

// Registers SharedMemory with `env`. Called once, before any session.
void RegisterMemory(Ort::Env& env);

// Makes a session use the registered memory.
void UseSharedMemory(Ort::SessionOptions& options);

}  // namespace orchid
