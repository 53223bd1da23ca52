// Vector helpers of the AVX-512 translation units, the counterpart of avx2_math.h; to be included
// by files compiled for AVX-512 only. Everything has internal linkage.
#pragma once

#include <immintrin.h>

namespace orchid {
namespace {

// Sum of the lanes, folded in halves.
inline float SumLanes16(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 m = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  m = _mm_add_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// exp(x) for x <= 0, the same bits as Exp of avx2_math.h.
inline __m512 Exp16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-87.0F), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0F)));
  const __m512i exponent =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_mul_ps(p, _mm512_castsi512_ps(exponent));
}

// x * sigmoid(x) through exp(-|x|), which cannot overflow.
inline __m512 Silu16(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 sign = _mm512_set1_ps(-0.0F);
  const __m512 e = Exp16(_mm512_or_ps(x, sign));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
  const __m512 share = _mm512_mask_blend_ps(negative, one, e);
  return _mm512_mul_ps(x, _mm512_div_ps(share, _mm512_add_ps(one, e)));
}

}  // namespace
}  // namespace orchid
