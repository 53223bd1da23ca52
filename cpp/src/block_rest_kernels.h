// The kernels behind orchid/block_rest.h, for CPUs with AVX2 and FMA.
#pragma once

#include "orchid/block_rest.h"

namespace orchid {

void SumBlocksAvx2(const float* x, std::int64_t rows, std::int64_t blocks, float* sums);
void AddBlockRestAvx2(const BlockRestArgs& args, std::int64_t row, std::int64_t row_end,
                      std::int64_t column, std::int64_t column_end);

}  // namespace orchid
