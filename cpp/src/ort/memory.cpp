#include "ort/memory.h"

#include <new>

#include "orchid/runtime.h"

namespace orchid {
namespace {

// ONNX Runtime does not look at what its allocator returns, but makes a status of what it throws.
void* Checked(void* memory, std::size_t bytes) {
  if (memory == nullptr && bytes > 0) throw std::bad_alloc();
  return memory;
}

struct Allocator : OrtAllocator {
  Allocator() : OrtAllocator{} {
    version = ORT_API_VERSION;
    Alloc = [](OrtAllocator*, std::size_t bytes) {
      return Checked(SharedMemory().Allocate(bytes), bytes);
    };
    Reserve = [](OrtAllocator*, std::size_t bytes) {
      return Checked(SharedMemory().Reserve(bytes), bytes);
    };
    Free = [](OrtAllocator*, void* pointer) { SharedMemory().Free(pointer); };
    Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* {
      return static_cast<const Allocator*>(self)->memory;
    };
  }
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
};

}  // namespace

RunMemory& SharedMemory() {
  // Leaked on purpose: sessions in other threads may outlive static destruction.
  static RunMemory* const memory = new RunMemory;
  return *memory;
}

void RegisterMemory(Ort::Env& env) {
  static Allocator* const allocator = new Allocator;
  Ort::ThrowOnError(Ort::GetApi().RegisterAllocator(env, allocator));
}

void UseSharedMemory(Ort::SessionOptions& options) {
  options.AddConfigEntry("session.use_env_allocators", "1");
  options.AddConfigEntry("session.use_device_allocator_for_initializers", "1");
}

}  // namespace orchid
