// The kernels behind orchid/block_product.h: the same bits from each set.
#pragma once

#include <cstdint>

#include "orchid/block_product.h"

namespace orchid {

constexpr std::int64_t kTileRowBytes = kBlockInputs + 8;  // values, scale and term of one block

struct BlockKernels {
  // out[i] = x[i] / sqrt(mean of squares + epsilon) * scale[i]; `count` a multiple of 32. Squares
  // are summed in 16 lanes, which are then folded in halves.
  void (*normalize)(const float* x, const float* scale, std::int64_t count, float epsilon,
                    float* out);
  // Quantises row `row` of a tile of `rows`; `tile` as QuantizedRows::Tile has it.
  void (*quantize)(const float* x, std::int64_t blocks, BlockForm form, std::int64_t row,
                   std::int64_t rows, unsigned char* tile);
  // sums [rows, 32] of one tile with one group, 1 to kTileRows rows. For each block in its order
  // sum = fma(dot, scale of weights * scale of row, sum), for kFourBits then fma(minimum, term,
  // sum).
  void (*multiply)(BlockForm form, const std::uint8_t* group, const unsigned char* tile,
                   std::int64_t rows, std::int64_t blocks, float* sums);
  // out[i] = add[i] + sums[i] for the 32 outputs of a group.
  void (*add)(const float* add, const float* sums, float* out);
  // out[i] = silu(gate[i]) * up[i] for 16 values; the sets differ by rounding.
  void (*swiglu)(const float* gate, const float* up, float* out);
};

const BlockKernels& PortableBlockKernels();

// Only on a CPU with AVX2, FMA and F16C.
const BlockKernels& Avx2BlockKernels();

// Only on a CPU with Simd::kAvx512.
const BlockKernels& Avx512BlockKernels();

}  // namespace orchid
