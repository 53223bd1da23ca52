#include "ort/arena.h"

#include <memory>
#include <string_view>

namespace orchid {
namespace {

// A model of one Identity node, bool [1] -> bool [1]. ONNX Runtime shrinks an arena only at the end
// of a run, while that run's outputs still occupy it; a run of this model occupies nothing.
constexpr std::string_view kTrimmerModel(
    "\x08\x07:"
    "7\n\x10\n\x01x\x12\x01y\"\x08Identity\x12\x01tZ\x0f\n\x01x\x12\n\n\x08\x08\t\x12\x04\n"
    "\x02\x08\x01"
    "b\x0f\n\x01y\x12\n\n\x08\x08\t\x12\x04\n\x02\x08\x01"
    "B\x04\n\x00\x10\r",
    65);

struct Trimmer {
  Ort::Session session{nullptr};
  Ort::RunOptions options;
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
};

Trimmer* g_trimmer = nullptr;

}  // namespace

void MakeArena(Ort::Env& env) {
  constexpr int kSameAsRequested = 1;
  const Ort::ArenaCfg config(0, kSameAsRequested, -1, -1);
  env.CreateAndRegisterAllocator(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault),
                                 config);
  Ort::SessionOptions options;
  UseArena(options);
  options.SetIntraOpNumThreads(1);
  auto made = std::make_unique<Trimmer>();
  made->session = Ort::Session(env, kTrimmerModel.data(), kTrimmerModel.size(), options);
  made->options.AddConfigEntry("memory.enable_memory_arena_shrinkage", "cpu:0");
  g_trimmer = made.release();  // lives as long as the environment: for ever
}

void UseArena(Ort::SessionOptions& options) {
  options.AddConfigEntry("session.use_env_allocators", "1");
  options.AddConfigEntry("session.use_device_allocator_for_initializers", "1");
}

void TrimArena() {
  bool in = false;
  bool out = false;
  const std::int64_t shape[] = {1};
  const Ort::Value x = Ort::Value::CreateTensor<bool>(g_trimmer->memory, &in, 1, shape, 1);
  Ort::Value y = Ort::Value::CreateTensor<bool>(g_trimmer->memory, &out, 1, shape, 1);
  const char* x_name = "x";
  const char* y_name = "y";
  g_trimmer->session.Run(g_trimmer->options, &x_name, &x, 1, &y_name, &y, 1);
}

}  // namespace orchid
