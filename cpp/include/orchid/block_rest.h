// What a product of 4-bit blocks leaves out. A block of 32 weights stands for
// scale * (value - 8) + rest, and `rest` multiplies nothing but the sum of the block's inputs:
//   out[t, n] = product[t, n] + sum_b rest[b, n] * sum_{i in block b} x[t, i]
// A row's result is the same bits whatever rows are beside it. Thread-safe.
#pragma once

#include <cstdint>

#include "orchid/cpu.h"

namespace orchid {

constexpr std::int64_t kRestBlock = 32;

// sums[t, b] of x [rows, blocks * 32].
void SumBlocks(const float* x, std::int64_t rows, std::int64_t blocks, float* sums, Simd simd);

// One call's operands; borrowed, row-major.
struct BlockRestArgs {
  const float* product = nullptr;  // [rows, outputs]
  const float* sums = nullptr;     // [rows, blocks]
  const float* rest = nullptr;     // [blocks, outputs]
  float* out = nullptr;            // [rows, outputs]; may be product
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
  std::int64_t outputs = 0;
};

// Computes rows [row, row_end) and columns [column, column_end) of out.
void AddBlockRest(const BlockRestArgs& args, std::int64_t row, std::int64_t row_end,
                  std::int64_t column, std::int64_t column_end, Simd simd);

}  // namespace orchid
