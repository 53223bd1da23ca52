#include <algorithm>
#include <chrono>
#include <string>

#include "fma_loops.h"
#include "orchid/cpu.h"
#include "orchid/error.h"

namespace orchid {

double FmaLoopPortable(std::int64_t rounds) {
  constexpr int kLanes = 32;
  float acc[kLanes];
  for (int i = 0; i < kLanes; ++i) acc[i] = static_cast<float>(i);
  for (std::int64_t r = 0; r < rounds; ++r) {
    for (int i = 0; i < kLanes; ++i) acc[i] = acc[i] * 0.999F + 1e-3F;
  }
  volatile float sink = 0.0F;
  for (const float value : acc) sink = sink + value;
  return static_cast<double>(rounds) * kLanes * 2.0;
}

namespace {

double Rate(double (*loop)(std::int64_t), double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kRounds = 1 << 18;
  loop(kRounds);  // wakes the vector units and settles the clock frequency
  double best = 0.0;
  const auto begin = Clock::now();
  for (;;) {
    const auto t0 = Clock::now();
    const double operations = loop(kRounds);
    const auto t1 = Clock::now();
    best = std::max(best, operations / std::chrono::duration<double>(t1 - t0).count());
    if (std::chrono::duration<double>(t1 - begin).count() >= seconds) return best / 1e9;
  }
}

}  // namespace

double MeasureFmaRate(double seconds) {
  if (!(seconds > 0.0 && seconds <= 60.0)) {
    throw InvalidInput("seconds is " + std::to_string(seconds) + "; accepted is above 0 up to 60");
  }
#if defined(ORCHID_X86_KERNELS)
  if (HasAvx512()) {
    return std::max(Rate(FmaLoopAvx2, seconds / 2), Rate(FmaLoopAvx512, seconds / 2));
  }
  if (DetectSimd() >= Simd::kAvx2) return Rate(FmaLoopAvx2, seconds);
#endif
  return Rate(FmaLoopPortable, seconds);
}

}  // namespace orchid
