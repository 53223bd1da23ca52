// The process's one ONNX Runtime library.
#pragma once

#include <string>

#include "orchid/run_memory.h"

namespace orchid {

struct RuntimeInfo {
  std::string library_path;
  std::string library_version;
  int header_api_version = 0;
};

// The ONNX Runtime API version this build was compiled against.
int HeaderApiVersion();

// Opens the library, takes its API of HeaderApiVersion() and makes the process-wide environment and
// custom-op domain, all of which live until the process ends. Thread-safe; a second call with the
// same path returns the first answer, with another path throws.
// Throws LoadError: cannot be opened, not an ONNX Runtime, or older than the headers.
const RuntimeInfo& InitRuntime(const std::string& library_path);

// Where all sessions take their memory from; lives until the process ends. Usable at any time.
RunMemory& SharedMemory();

}  // namespace orchid
