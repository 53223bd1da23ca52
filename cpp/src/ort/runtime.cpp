#include "orchid/runtime.h"

#include <dlfcn.h>

#include <mutex>

#include "orchid/error.h"
#include "ort/api.h"
#include "ort/memory.h"

namespace orchid {
namespace {

std::mutex g_mutex;
// Leaked on purpose: sessions in other threads may outlive static destruction.
RuntimeInfo* g_info = nullptr;
Ort::Env* g_env = nullptr;

const OrtApiBase* OpenLibrary(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw LoadError("cannot open " + path + ": " + dlerror());
  using GetApiBase = const OrtApiBase* (*)();
  const auto get_base = reinterpret_cast<GetApiBase>(dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr) throw LoadError(path + " is not an ONNX Runtime library");
  return get_base();
}

}  // namespace

int HeaderApiVersion() { return ORT_API_VERSION; }

const RuntimeInfo& InitRuntime(const std::string& library_path) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_info != nullptr) {
    if (g_info->library_path != library_path) {
      throw LoadError("ONNX Runtime is already loaded from " + g_info->library_path +
                      ", not from " + library_path);
    }
    return *g_info;
  }
  if (OperatorsLent()) {
    throw LoadError("another ONNX Runtime of this process has taken the engine's operators");
  }
  const OrtApiBase* base = OpenLibrary(library_path);
  const std::string version = base->GetVersionString();
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw LoadError("ONNX Runtime " + version + " (" + library_path + ") is older than API " +
                    std::to_string(ORT_API_VERSION) +
                    " that the engine was compiled for; install a newer onnxruntime");
  }
  Ort::InitApi(api);
  try {
    // Every error is thrown with its text; a terminated run is not even one.
    g_env = new Ort::Env(ORT_LOGGING_LEVEL_FATAL, "orchid");
    g_env->DisableTelemetryEvents();
    RegisterMemory(*g_env);
    MakeCustomOps();
  } catch (const Ort::Exception& e) {
    throw LoadError("ONNX Runtime " + version + " does not start: " + e.what());
  }
  g_info = new RuntimeInfo{library_path, version, ORT_API_VERSION};
  return *g_info;
}

bool RuntimeLoaded() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_info != nullptr;
}

Ort::Env& OrtEnvironment() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_info == nullptr) throw LoadError("ONNX Runtime has not been loaded");
  return *g_env;
}

}  // namespace orchid
