// Vector helpers of the AVX2 translation units; to be included by files compiled for AVX2 and FMA
// only. Everything has internal linkage, so that no other file can end up with this code.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orchid {
namespace {

// Lanes [0, count) set, for 0 <= count <= 8.
inline __m256i LaneMask(std::int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}

inline float MaxLane(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

inline float SumLanes(__m256 v) {
  __m128 m = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_add_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// exp(x) for x <= 0 within 2 ulp; x below -87 gives exp(-87), NaN stays NaN.
// Range reduction to |r| <= ln2/2 and the degree-5 polynomial of Cephes' expf.
inline __m256 Exp(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-87.0F), x);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504F)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375F), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4F), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4F);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1F));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0F)));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

// x * sigmoid(x) through exp(-|x|), which cannot overflow.
inline __m256 Silu(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 e = Exp(_mm256_or_ps(x, sign));
  const __m256 share = _mm256_blendv_ps(one, e, x);  // by x's sign bit
  return _mm256_mul_ps(x, _mm256_div_ps(share, _mm256_add_ps(one, e)));
}

}  // namespace
}  // namespace orchid
