#include "orchid/ragged.h"

#include <algorithm>

namespace orchid {

void RaggedMean(const float* x, std::int64_t width, const std::int32_t* offsets,
                std::int64_t sequences, float* out) {
  for (std::int64_t s = 0; s < sequences; ++s) {
    float* mean = out + s * width;
    std::fill(mean, mean + width, 0.0F);
    for (std::int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
      const float* row = x + t * width;
      for (std::int64_t i = 0; i < width; ++i) mean[i] += row[i];
    }
    const float inverse = 1.0F / static_cast<float>(offsets[s + 1] - offsets[s]);
    for (std::int64_t i = 0; i < width; ++i) mean[i] *= inverse;
  }
}

void RaggedPositions(const std::int32_t* offsets, std::int64_t sequences, std::int64_t* out) {
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t t = offsets[s]; t < offsets[s + 1]; ++t) out[t] = t - offsets[s];
  }
}

}  // namespace orchid
