#include "orchid/block_rest.h"

#include <algorithm>

#include "block_rest_kernels.h"

namespace orchid {
namespace {

bool Wide(Simd simd) {
#if defined(ORCHID_X86_KERNELS)
  return Allows(simd, Simd::kAvx2);
#else
  static_cast<void>(simd);
  return false;
#endif
}

}  // namespace

void SumBlocks(const float* x, std::int64_t rows, std::int64_t blocks, float* sums, Simd simd) {
#if defined(ORCHID_X86_KERNELS)
  if (Wide(simd)) return SumBlocksAvx2(x, rows, blocks, sums);
#endif
  static_cast<void>(simd);
  for (std::int64_t i = 0; i < rows * blocks; ++i, x += kRestBlock) {
    float lanes[8] = {};
    for (std::int64_t j = 0; j < kRestBlock; ++j) lanes[j % 8] += x[j];
    sums[i] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
              ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
}

void AddBlockRest(const BlockRestArgs& args, std::int64_t row, std::int64_t row_end,
                  std::int64_t column, std::int64_t column_end, Simd simd) {
#if defined(ORCHID_X86_KERNELS)
  if (Wide(simd)) return AddBlockRestAvx2(args, row, row_end, column, column_end);
#endif
  static_cast<void>(simd);
  constexpr std::int64_t kStrip = 16;
  for (; row < row_end; ++row) {
    const float* sums = args.sums + row * args.blocks;
    for (std::int64_t c = column; c < column_end; c += kStrip) {
      const std::int64_t width = std::min(kStrip, column_end - c);
      float strip[kStrip];
      std::copy_n(args.product + row * args.outputs + c, width, strip);
      for (std::int64_t b = 0; b < args.blocks; ++b) {
        const float* rest = args.rest + b * args.outputs + c;
        for (std::int64_t i = 0; i < width; ++i) strip[i] += sums[b] * rest[i];
      }
      std::copy_n(strip, width, args.out + row * args.outputs + c);
    }
  }
}

}  // namespace orchid
