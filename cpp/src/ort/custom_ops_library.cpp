// How an ONNX Runtime other than the engine's own takes the operators: the entry point that every
// runtime looks for in a library of custom operators. Profiles are checked against such a session.
#include <atomic>
#include <mutex>

#include "ort/api.h"

namespace orchid {
namespace {

std::atomic<bool> g_lent{false};

}  // namespace

bool OperatorsLent() { return g_lent; }

}  // namespace orchid

// Must not be called in a process whose engine is in use: functions come from one runtime only.
extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  // Without this version of the API there is not even a way to say so but the oldest one.
  if (api == nullptr) return base->GetApi(1)->CreateStatus(ORT_FAIL, "this runtime is too old");
  if (orchid::RuntimeLoaded()) {
    return api->CreateStatus(ORT_FAIL, "the engine is in use in this process; use another one");
  }
  try {
    if (!orchid::OperatorsLent()) {
      Ort::InitApi(api);
      orchid::MakeCustomOps();
      orchid::g_lent = true;
    }
    orchid::AddCustomOps(Ort::UnownedSessionOptions(options));
  } catch (const Ort::Exception& e) {
    return api->CreateStatus(ORT_FAIL, e.what());
  }
  return nullptr;
}
