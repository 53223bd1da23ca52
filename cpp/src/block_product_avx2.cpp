#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "avx2_math.h"
#include "block_product_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kVectorBytes = 32;
constexpr std::int64_t kVectors = kGroupOutputs / kLanes;
constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kMicroRows = 4;
constexpr std::int64_t kAhead = 4096;
constexpr BlockForm kFour = BlockForm::kFourBits;

void Normalize(const float* x, const float* scale, std::int64_t count, float epsilon, float* out) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    const __m256 a = _mm256_loadu_ps(x + i);
    const __m256 b = _mm256_loadu_ps(x + i + kLanes);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  const float mean = SumLanes(_mm256_add_ps(low, high)) / static_cast<float>(count);
  const __m256 inverse = _mm256_set1_ps(1.0F / std::sqrt(mean + epsilon));
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), inverse);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(scale + i)));
  }
}

void Quantize(const float* x, std::int64_t blocks, BlockForm form, std::int64_t row,
              std::int64_t rows, unsigned char* tile) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  // Undoes the packs' order, which is by 128-bit halves.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::int64_t b = 0; b < blocks; ++b, x += kBlockInputs, tile += rows * kTileRowBytes) {
    __m256 v[kVectors];
    __m256 peak = _mm256_setzero_ps();
    for (int i = 0; i < kVectors; ++i) {
      v[i] = _mm256_loadu_ps(x + kLanes * i);
      peak = _mm256_max_ps(peak, _mm256_andnot_ps(sign, v[i]));
    }
    const float largest = MaxLane(peak);
    const float scale = largest / 127.0F;
    const __m256 inverse = _mm256_set1_ps(largest > 0.0F ? 127.0F / largest : 0.0F);
    __m256i q[kVectors];
    for (int i = 0; i < kVectors; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256i packed = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile + row * kBlockInputs), packed);
    // Values are summed as unsigned bytes around 128.
    const __m256i sums =
        _mm256_sad_epu8(_mm256_xor_si256(packed, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m128i pair =
        _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
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

__m256i Load(const std::uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

__m256i Four(const unsigned char* values) {
  std::int32_t four;
  std::memcpy(&four, values, 4);
  return _mm256_set1_epi32(four);
}

__m256 One(const unsigned char* value) {
  float one;
  std::memcpy(&one, value, 4);
  return _mm256_set1_ps(one);
}

__m256 Halves(const std::uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// Sums of pairs stay within 16 bits for a whole block: 8 * 2 * 15 * 128 = 30720.
template <int kRows>
inline void DotOfFour(const std::uint8_t* values, const unsigned char* x, __m256i (&dot)[kRows]) {
  const __m256i low_half = _mm256_set1_epi8(15);
  __m256i pairs[kRows];
  for (int r = 0; r < kRows; ++r) pairs[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i packed = Load(values + i * kVectors * kVectorBytes);
    const __m256i low = _mm256_and_si256(packed, low_half);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_half);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const unsigned char* four = x + r * kBlockInputs + 4 * i;
      pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(low, Four(four)));
      pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(high, Four(four + 16)));
    }
  }
  for (int r = 0; r < kRows; ++r) dot[r] = _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1));
}

// The weight's sign moves to the row's value, which is never -128 for a finite row, so a pair's sum
// is at most 2 * 128 * 127 and does not saturate.
template <int kRows>
inline void DotOfEight(const std::uint8_t* values, const unsigned char* x, __m256i (&dot)[kRows]) {
  const __m256i middle = _mm256_set1_epi8(-128);
  for (int r = 0; r < kRows; ++r) dot[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i weight = _mm256_xor_si256(Load(values + i * kVectors * kVectorBytes), middle);
    const __m256i size = _mm256_abs_epi8(weight);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i four = _mm256_sign_epi8(Four(x + r * kBlockInputs + 4 * i), weight);
      dot[r] = _mm256_add_epi32(
          dot[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, four), _mm256_set1_epi16(1)));
    }
  }
}

// Rows [row, row + kRows) of a tile of `rows` with vector `v` of the group's outputs.
template <BlockForm kForm, int kRows>
void Micro(const std::uint8_t* group, const unsigned char* tile, std::int64_t row,
           std::int64_t rows, std::int64_t blocks, std::int64_t v, float* sums) {
  constexpr std::int64_t kHeader = (kForm == kFour ? 4 : 2) * kGroupOutputs;
  __m256 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm256_setzero_ps();
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t line = 0; v == 0 && line < GroupBytes(kForm); line += kCacheLine) {
      _mm_prefetch(reinterpret_cast<const char*>(group) + kAhead + line, _MM_HINT_T0);
    }
    const std::uint8_t* values = group + kHeader + v * kVectorBytes;
    const unsigned char* x = tile + row * kBlockInputs;
    __m256i dot[kRows];
    if (kForm == kFour) {
      DotOfFour<kRows>(values, x, dot);
    } else {
      DotOfEight<kRows>(values, x, dot);
    }
    const __m256 scale = Halves(group + 2 * kLanes * v);
    const unsigned char* scales = tile + rows * kBlockInputs + 4 * row;
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_mul_ps(scale, One(scales + 4 * r));
      sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), factor, sum[r]);
      if (kForm == kFour) {
        const __m256 minimum = Halves(group + 2 * (kGroupOutputs + kLanes * v));
        sum[r] = _mm256_fmadd_ps(minimum, One(scales + 4 * (rows + r)), sum[r]);
      }
    }
    group += GroupBytes(kForm);
    tile += rows * kTileRowBytes;
  }
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(sums + (row + r) * kGroupOutputs + v * kLanes, sum[r]);
  }
}

template <BlockForm kForm>
void MultiplyForm(const std::uint8_t* group, const unsigned char* tile, std::int64_t rows,
                  std::int64_t blocks, float* sums) {
  for (std::int64_t row = 0; row < rows; row += kMicroRows) {
    for (std::int64_t v = 0; v < kVectors; ++v) {
      switch (std::min(kMicroRows, rows - row)) {
        case 4:
          Micro<kForm, 4>(group, tile, row, rows, blocks, v, sums);
          break;
        case 3:
          Micro<kForm, 3>(group, tile, row, rows, blocks, v, sums);
          break;
        case 2:
          Micro<kForm, 2>(group, tile, row, rows, blocks, v, sums);
          break;
        default:
          Micro<kForm, 1>(group, tile, row, rows, blocks, v, sums);
      }
    }
  }
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
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(add + i), _mm256_loadu_ps(sums + i)));
  }
}

void Glu(const float* gate, const float* up, float* out) {
  for (int i = 0; i < 16; i += 8) {
    const __m256 active = Silu(_mm256_loadu_ps(gate + i));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(active, _mm256_loadu_ps(up + i)));
  }
}

}  // namespace

const BlockKernels& Avx2BlockKernels() {
  static const BlockKernels kernels{Normalize, Quantize, Multiply, Add, Glu};
  return kernels;
}

}  // namespace orchid
