#include <cmath>
#include <cstdint>
#include <cstring>

#include "avx512_math.h"
#include "block_product_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kCacheLine = 64;
constexpr BlockForm kFour = BlockForm::kFourBits;
// How far ahead of the products weights are asked for: a few microseconds of a memory's latency.
constexpr std::int64_t kAhead = 4096;

void Normalize(const float* x, const float* scale, std::int64_t count, float epsilon, float* out) {
  __m512 squares = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m512 v = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const float mean = SumLanes16(squares) / static_cast<float>(count);
  const __m512 inverse = _mm512_set1_ps(1.0F / std::sqrt(mean + epsilon));
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), inverse);
    _mm512_storeu_ps(out + i, _mm512_mul_ps(v, _mm512_loadu_ps(scale + i)));
  }
}

void Quantize(const float* x, std::int64_t blocks, BlockForm form, std::int64_t row,
              std::int64_t rows, unsigned char* tile) {
  for (std::int64_t b = 0; b < blocks; ++b, x += kBlockInputs, tile += rows * kTileRowBytes) {
    const __m512 low = _mm512_loadu_ps(x);
    const __m512 high = _mm512_loadu_ps(x + kLanes);
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
    const float scale = largest / 127.0F;
    const __m512 inverse = _mm512_set1_ps(largest > 0.0F ? 127.0F / largest : 0.0F);
    const __m128i first = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
    const __m128i second = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
    auto* values = reinterpret_cast<__m128i*>(tile + row * kBlockInputs);
    _mm_storeu_si128(values, first);
    _mm_storeu_si128(values + 1, second);
    // Values are summed as unsigned bytes around 128.
    const __m128i middle = _mm_set1_epi8(-128);
    const __m128i zero = _mm_setzero_si128();
    const __m128i pair = _mm_add_epi64(_mm_sad_epu8(_mm_xor_si128(first, middle), zero),
                                       _mm_sad_epu8(_mm_xor_si128(second, middle), zero));
    const std::int32_t sum =
        _mm_cvtsi128_si32(pair) + _mm_extract_epi32(pair, 2) - 128 * static_cast<int>(kBlockInputs);
    unsigned char* scales = tile + rows * kBlockInputs;
    std::memcpy(scales + row * 4, &scale, 4);
    if (form == kFour) {
      const float term = scale * static_cast<float>(sum);
      std::memcpy(scales + (rows + row) * 4, &term, 4);
    } else {
      const std::int32_t term = -128 * sum;
      std::memcpy(scales + (rows + row) * 4, &term, 4);
    }
  }
}

__m512i Four(const unsigned char* values) {
  std::int32_t four;
  std::memcpy(&four, values, 4);
  return _mm512_set1_epi32(four);
}

__m512 One(const unsigned char* value) {
  float one;
  std::memcpy(&one, value, 4);
  return _mm512_set1_ps(one);
}

__m512 Halves(const std::uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// The integer products of one block, of kRows rows with kVectors vectors of 16 outputs.
template <BlockForm kForm, int kRows, int kVectors>
inline void Dot(const std::uint8_t* values, const unsigned char* tile,
                __m512i (&dot)[kRows][kVectors]) {
  constexpr int kLoads = kForm == kFour ? 4 : 8;
  const __m512i low_half = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int i = 0; i < kLoads; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m512i packed = _mm512_loadu_si512(values + (2 * i + v) * kCacheLine);
      if (kForm == kFour) {
        const __m512i low = _mm512_and_si512(packed, low_half);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_half);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const unsigned char* x = tile + r * kBlockInputs + 4 * i;
          dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], low, Four(x));
          dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], high, Four(x + kBlockInputs / 2));
        }
      } else {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], packed, Four(tile + r * kBlockInputs + 4 * i));
        }
      }
    }
  }
}

// kVectors vectors of outputs from vector `first` on.
template <BlockForm kForm, int kRows, int kVectors>
void Micro(const std::uint8_t* group, const unsigned char* tile, std::int64_t blocks,
           std::int64_t first, float* sums) {
  constexpr std::int64_t kHeader = (kForm == kFour ? 4 : 2) * kGroupOutputs;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t line = 0; line < GroupBytes(kForm); line += kCacheLine) {
      _mm_prefetch(reinterpret_cast<const char*>(group) + kAhead + line, _MM_HINT_T0);
    }
    const unsigned char* scales = tile + kRows * kBlockInputs;
    const unsigned char* terms = scales + 4 * kRows;
    __m512i dot[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        dot[r][v] = kForm == kFour ? _mm512_setzero_si512() : Four(terms + 4 * r);
      }
    }
    Dot<kForm, kRows, kVectors>(group + kHeader + first * kCacheLine, tile, dot);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m512 scale = Halves(group + 2 * kLanes * (first + v));
      const __m512 minimum = kForm == kFour
                                 ? Halves(group + 2 * (kGroupOutputs + kLanes * (first + v)))
                                 : _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_mul_ps(scale, One(scales + 4 * r));
        sum[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][v]), factor, sum[r][v]);
        if (kForm == kFour) sum[r][v] = _mm512_fmadd_ps(minimum, One(terms + 4 * r), sum[r][v]);
      }
    }
    group += GroupBytes(kForm);
    tile += kRows * kTileRowBytes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(sums + r * kGroupOutputs + (first + v) * kLanes, sum[r][v]);
    }
  }
}

template <BlockForm kForm, int kRows>
void MultiplyRows(const std::uint8_t* group, const unsigned char* tile, std::int64_t blocks,
                  float* sums) {
  if constexpr (kRows <= 4) {
    Micro<kForm, kRows, 2>(group, tile, blocks, 0, sums);
  } else {
    // One vector of outputs after the other: the sums of two do not fit the registers.
    Micro<kForm, kRows, 1>(group, tile, blocks, 0, sums);
    Micro<kForm, kRows, 1>(group, tile, blocks, 1, sums);
  }
}

template <BlockForm kForm>
void MultiplyForm(const std::uint8_t* group, const unsigned char* tile, std::int64_t rows,
                  std::int64_t blocks, float* sums) {
  using Rows = void (*)(const std::uint8_t*, const unsigned char*, std::int64_t, float*);
  static constexpr Rows kByRows[kTileRows] = {MultiplyRows<kForm, 1>, MultiplyRows<kForm, 2>,
                                              MultiplyRows<kForm, 3>, MultiplyRows<kForm, 4>,
                                              MultiplyRows<kForm, 5>, MultiplyRows<kForm, 6>,
                                              MultiplyRows<kForm, 7>, MultiplyRows<kForm, 8>};
  kByRows[rows - 1](group, tile, blocks, sums);
}

void Multiply(BlockForm form, const std::uint8_t* group, const unsigned char* tile,
              std::int64_t rows, std::int64_t blocks, float* sums) {
  if (form == kFour) {
    MultiplyForm<kFour>(group, tile, rows, blocks, sums);
  } else {
    MultiplyForm<BlockForm::kEightBits>(group, tile, rows, blocks, sums);
  }
}

void Add(const float* add, const float* sums, float* out) {
  for (int i = 0; i < kGroupOutputs; i += kLanes) {
    _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(add + i), _mm512_loadu_ps(sums + i)));
  }
}

void Glu(const float* gate, const float* up, float* out) {
  _mm512_storeu_ps(out, _mm512_mul_ps(Silu16(_mm512_loadu_ps(gate)), _mm512_loadu_ps(up)));
}

}  // namespace

const BlockKernels& Avx512BlockKernels() {
  static const BlockKernels kernels{Normalize, Quantize, Multiply, Add, Glu};
  return kernels;
}

}  // namespace orchid
