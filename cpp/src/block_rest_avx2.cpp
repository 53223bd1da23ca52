#include <cstdint>

#include "avx2_math.h"
#include "block_rest_kernels.h"

namespace orchid {
namespace {

constexpr int kMicroRows = 4;

// kRows rows of kVectors vectors, or of the masked rest of one.
template <int kRows, int kVectors, bool kMasked>
void RestMicro(const BlockRestArgs& args, std::int64_t row, std::int64_t column, __m256i mask) {
  const auto load = [&](const float* from) {
    return kMasked ? _mm256_maskload_ps(from, mask) : _mm256_loadu_ps(from);
  };
  __m256 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = load(args.product + (row + r) * args.outputs + column + 8 * v);
    }
  }
  for (std::int64_t b = 0; b < args.blocks; ++b) {
    __m256 rest[kVectors];
    for (int v = 0; v < kVectors; ++v)
      rest[v] = load(args.rest + b * args.outputs + column + 8 * v);
    for (int r = 0; r < kRows; ++r) {
      const __m256 sum = _mm256_broadcast_ss(args.sums + (row + r) * args.blocks + b);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm256_fmadd_ps(sum, rest[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = args.out + (row + r) * args.outputs + column + 8 * v;
      if (kMasked) {
        _mm256_maskstore_ps(to, mask, acc[r][v]);
      } else {
        _mm256_storeu_ps(to, acc[r][v]);
      }
    }
  }
}

template <int kVectors, bool kMasked>
void RestStrip(const BlockRestArgs& args, std::int64_t row, std::int64_t row_end,
               std::int64_t column, __m256i mask) {
  for (; row + kMicroRows <= row_end; row += kMicroRows) {
    RestMicro<kMicroRows, kVectors, kMasked>(args, row, column, mask);
  }
  for (; row + 2 <= row_end; row += 2) RestMicro<2, kVectors, kMasked>(args, row, column, mask);
  if (row < row_end) RestMicro<1, kVectors, kMasked>(args, row, column, mask);
}

}  // namespace

void SumBlocksAvx2(const float* x, std::int64_t rows, std::int64_t blocks, float* sums) {
  for (std::int64_t i = 0; i < rows * blocks; ++i, x += kRestBlock) {
    __m256 sum = _mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));
    sum = _mm256_add_ps(sum, _mm256_loadu_ps(x + 16));
    sums[i] = SumLanes(_mm256_add_ps(sum, _mm256_loadu_ps(x + 24)));
  }
}

void AddBlockRestAvx2(const BlockRestArgs& args, std::int64_t row, std::int64_t row_end,
                      std::int64_t column, std::int64_t column_end) {
  const __m256i all = LaneMask(8);
  for (; column + 24 <= column_end; column += 24) {
    RestStrip<3, false>(args, row, row_end, column, all);
  }
  for (; column + 8 <= column_end; column += 8) {
    RestStrip<1, false>(args, row, row_end, column, all);
  }
  if (column < column_end) {
    RestStrip<1, true>(args, row, row_end, column, LaneMask(column_end - column));
  }
}

}  // namespace orchid
