#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention_kernels.h"

namespace orchid {
namespace {

// Keys per online-softmax step: bounds the scratch whatever the sequence's length.
constexpr std::int64_t kKeyTile = 256;

// Four partial sums let the compiler keep several multiply-adds in flight without reassociating.
float Dot(const float* a, const float* b, std::int64_t n) {
  float s0 = 0.0F;
  float s1 = 0.0F;
  float s2 = 0.0F;
  float s3 = 0.0F;
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i] * b[i];
    s1 += a[i + 1] * b[i + 1];
    s2 += a[i + 2] * b[i + 2];
    s3 += a[i + 3] * b[i + 3];
  }
  for (; i < n; ++i) s0 += a[i] * b[i];
  return (s0 + s1) + (s2 + s3);
}

}  // namespace

void AttendPortable(const AttentionArgs& args, const AttentionItem& item) {
  const std::int64_t width = args.heads * args.head_dim;
  const std::int64_t stride = 3 * width;
  const float* base = args.qkv + item.first_row * stride + item.head * args.head_dim;
  const float* bias =
      args.bias == nullptr ? nullptr : args.bias + item.head * (2 * args.bias_reach - 1);
  float scores[kKeyTile];

  for (std::int64_t i = item.query_begin; i < item.query_end; ++i) {
    const float* q = base + i * stride;
    float* out = args.out + (item.first_row + i) * width + item.head * args.head_dim;
    std::fill(out, out + args.head_dim, 0.0F);
    float peak = 0.0F;
    float total = 0.0F;
    for (std::int64_t j0 = 0; j0 < item.length; j0 += kKeyTile) {
      const std::int64_t count = std::min(kKeyTile, item.length - j0);
      for (std::int64_t j = 0; j < count; ++j) {
        const float* k = base + width + (j0 + j) * stride;
        scores[j] = args.scale * Dot(q, k, args.head_dim);
        if (bias != nullptr) scores[j] += bias[BiasColumn(j0 + j - i, args.bias_reach)];
      }
      const float tile_peak = *std::max_element(scores, scores + count);
      const float new_peak = j0 == 0 ? tile_peak : std::max(peak, tile_peak);
      const float decay = j0 == 0 ? 0.0F : std::exp(peak - new_peak);
      total *= decay;
      for (std::int64_t d = 0; d < args.head_dim; ++d) out[d] *= decay;
      for (std::int64_t j = 0; j < count; ++j) {
        const float weight = std::exp(scores[j] - new_peak);
        const float* v = base + 2 * width + (j0 + j) * stride;
        total += weight;
        for (std::int64_t d = 0; d < args.head_dim; ++d) out[d] += weight * v[d];
      }
      peak = new_peak;
    }
    const float inverse = 1.0F / total;
    for (std::int64_t d = 0; d < args.head_dim; ++d) out[d] *= inverse;
  }
}

}  // namespace orchid
