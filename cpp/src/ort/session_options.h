#pragma once

#include "orchid/session.h"
#include "ort/api.h"

namespace orchid {

// ONNX Runtime's form of the engine's options. Throws LoadError, Ort::Exception.
Ort::SessionOptions MakeOrtOptions(const SessionOptions& options);

}  // namespace orchid
