#include <immintrin.h>

#include "fma_loops.h"

namespace orchid {

// Twelve independent chains: more than latency times issue width on every AVX-512 core.
double FmaLoopAvx512(std::int64_t rounds) {
  constexpr int kChains = 12;
  __m512 acc[kChains];
  const __m512 factor = _mm512_set1_ps(0.999F);
  const __m512 addend = _mm512_set1_ps(1e-3F);
  for (auto& chain : acc) chain = _mm512_setzero_ps();
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_fmadd_ps(acc[i], factor, addend);
  }
  __m512 sum = _mm512_setzero_ps();
  for (const auto& chain : acc) sum = _mm512_add_ps(sum, chain);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sum);
  volatile float sink = lanes[0];
  static_cast<void>(sink);
  return static_cast<double>(rounds) * kChains * 16 * 2.0;
}

}  // namespace orchid
