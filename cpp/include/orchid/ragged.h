// The small ragged kernels. Thread-safe; nothing is owned; offsets must have passed
// CheckRowOffsets.
#pragma once

#include <cstdint>

namespace orchid {

// out[s, :] = mean of x[offsets[s]..offsets[s + 1], :]; x is [rows, width], out [sequences, width].
// Summed in row order, so a sequence's mean does not depend on its neighbours.
void RaggedMean(const float* x, std::int64_t width, const std::int32_t* offsets,
                std::int64_t sequences, float* out);

// out[t] = t - offsets[s] for the sequence s that owns row t.
void RaggedPositions(const std::int32_t* offsets, std::int64_t sequences, std::int64_t* out);

}  // namespace orchid
