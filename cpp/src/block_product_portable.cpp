#include <algorithm>
#include <cmath>
#include <cstring>

#include "block_product_kernels.h"
#include "orchid/half.h"

namespace orchid {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kVector = 4;  // inputs of one output that lie side by side

void Normalize(const float* x, const float* scale, std::int64_t count, float epsilon, float* out) {
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i)
    lanes[i % kLanes] = std::fma(x[i], x[i], lanes[i % kLanes]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  const float inverse = 1.0F / std::sqrt(lanes[0] / static_cast<float>(count) + epsilon);
  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] * inverse * scale[i];
}

// Nearest integer, ties to even; what is no number becomes -128, as the vector conversions have it.
std::int32_t Rounded(float x) {
  if (!(x >= -128.0F)) return -128;
  return static_cast<std::int32_t>(std::nearbyint(std::min(x, 127.0F)));
}

void Quantize(const float* x, std::int64_t blocks, BlockForm form, std::int64_t row,
              std::int64_t rows, unsigned char* tile) {
  for (std::int64_t b = 0; b < blocks; ++b, x += kBlockInputs, tile += rows * kTileRowBytes) {
    float largest = 0.0F;
    for (std::int64_t i = 0; i < kBlockInputs; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127.0F;
    const float inverse = largest > 0.0F ? 127.0F / largest : 0.0F;
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < kBlockInputs; ++i) {
      const std::int32_t value = Rounded(x[i] * inverse);
      tile[row * kBlockInputs + i] = static_cast<unsigned char>(value);
      sum += value;
    }
    unsigned char* scales = tile + rows * kBlockInputs;
    std::memcpy(scales + row * 4, &scale, 4);
    const float sum_term = scale * static_cast<float>(sum);
    const std::int32_t offset_term = -128 * sum;
    const void* term = &offset_term;
    if (form == BlockForm::kFourBits) term = &sum_term;
    std::memcpy(scales + (rows + row) * 4, term, 4);
  }
}

float HalfAt(const std::uint8_t* at, std::int64_t index) {
  std::uint16_t half;
  std::memcpy(&half, at + 2 * index, 2);
  return FloatFromHalf(half);
}

std::int32_t DotOfFour(const std::uint8_t* values, std::int64_t output, const std::int8_t* x) {
  std::int32_t dot = 0;
  for (std::int64_t i = 0; i < kBlockInputs / 2 / kVector; ++i) {
    const std::uint8_t* packed = values + (i * kGroupOutputs + output) * kVector;
    for (std::int64_t j = 0; j < kVector; ++j) {
      dot += (packed[j] & 15) * x[kVector * i + j];
      dot += (packed[j] >> 4) * x[kVector * i + j + kBlockInputs / 2];
    }
  }
  return dot;
}

std::int32_t DotOfEight(const std::uint8_t* values, std::int64_t output, const std::int8_t* x) {
  std::int32_t dot = 0;
  for (std::int64_t i = 0; i < kBlockInputs / kVector; ++i) {
    const std::uint8_t* four = values + (i * kGroupOutputs + output) * kVector;
    for (std::int64_t j = 0; j < kVector; ++j) dot += (four[j] - 128) * x[kVector * i + j];
  }
  return dot;
}

void Multiply(BlockForm form, const std::uint8_t* group, const unsigned char* tile,
              std::int64_t rows, std::int64_t blocks, float* sums) {
  std::fill_n(sums, rows * kGroupOutputs, 0.0F);
  for (std::int64_t b = 0; b < blocks;
       ++b, group += GroupBytes(form), tile += rows * kTileRowBytes) {
    const std::uint8_t* minima = group + 2 * kGroupOutputs;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* x = reinterpret_cast<const std::int8_t*>(tile) + r * kBlockInputs;
      float scale;
      float term;
      std::memcpy(&scale, tile + rows * kBlockInputs + r * 4, 4);
      std::memcpy(&term, tile + rows * kBlockInputs + (rows + r) * 4, 4);
      float* sum = sums + r * kGroupOutputs;
      for (std::int64_t o = 0; o < kGroupOutputs; ++o) {
        const float factor = HalfAt(group, o) * scale;
        if (form == BlockForm::kFourBits) {
          const auto dot = static_cast<float>(DotOfFour(minima + 2 * kGroupOutputs, o, x));
          sum[o] = std::fma(HalfAt(minima, o), term, std::fma(dot, factor, sum[o]));
        } else {
          sum[o] = std::fma(static_cast<float>(DotOfEight(minima, o, x)), factor, sum[o]);
        }
      }
    }
  }
}

void Add(const float* add, const float* sums, float* out) {
  for (int i = 0; i < kGroupOutputs; ++i) out[i] = add[i] + sums[i];
}

void Glu(const float* gate, const float* up, float* out) {
  for (int i = 0; i < kLanes; ++i) out[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

}  // namespace

const BlockKernels& PortableBlockKernels() {
  static const BlockKernels kernels{Normalize, Quantize, Multiply, Add, Glu};
  return kernels;
}

}  // namespace orchid
