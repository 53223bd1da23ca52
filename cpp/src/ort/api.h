// The only way to ONNX Runtime's headers. Its functions come from the library InitRuntime opened.
#pragma once

#include <onnxruntime_cxx_api.h>

namespace orchid {

// The process-wide environment. Throws LoadError before InitRuntime has succeeded.
Ort::Env& OrtEnvironment();

// Whether InitRuntime has succeeded in this process.
bool RuntimeLoaded();

// Whether another ONNX Runtime of this process has taken the operators; see RegisterCustomOps.
bool OperatorsLent();

// Adds the "orchid" custom-op domain to `options`.
void AddCustomOps(Ort::UnownedSessionOptions options);

// Builds the domain; called once, after the API is set.
void MakeCustomOps();

}  // namespace orchid
