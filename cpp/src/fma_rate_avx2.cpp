#include <immintrin.h>

#include "fma_loops.h"

namespace orchid {

// Twelve independent chains: more than latency times issue width on every FMA3 core.
double FmaLoopAvx2(std::int64_t rounds) {
  constexpr int kChains = 12;
  __m256 acc[kChains];
  const __m256 factor = _mm256_set1_ps(0.999F);
  const __m256 addend = _mm256_set1_ps(1e-3F);
  for (auto& chain : acc) chain = _mm256_setzero_ps();
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_fmadd_ps(acc[i], factor, addend);
  }
  __m256 sum = _mm256_setzero_ps();
  for (const auto& chain : acc) sum = _mm256_add_ps(sum, chain);
  volatile float sink = _mm256_cvtss_f32(sum);
  static_cast<void>(sink);
  return static_cast<double>(rounds) * kChains * 8 * 2.0;
}

}  // namespace orchid
