#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention_kernels.h"

namespace orchid {
namespace {

// Keys per online-softmax step: bounds the scratch whatever the sequence's length.
constexpr std::int64_t kKeyTile = 256;
// Query rows that share each load of a key or value row.
constexpr int kRowTile = 4;

// Four floats in the compiler's own vector type, which every target has (in software if need be).
typedef float Vec4 __attribute__((vector_size(16)));

Vec4 Load(const float* from) {
  Vec4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

void Store(float* to, Vec4 v) { std::memcpy(to, &v, sizeof v); }

// K and V rows of one key tile, copied next to each other: at their own stride, a multiple of large
// powers of two, they would crowd into a few cache sets.
struct PackedTile {
  std::vector<float> keys;
  std::vector<float> values;
  std::int64_t dim = 0;

  void Pack(const float* k, const float* v, std::int64_t stride, std::int64_t count,
            std::int64_t head_dim) {
    dim = head_dim;
    const auto size = static_cast<std::size_t>(kKeyTile * dim);
    if (keys.size() < size) {
      keys.resize(size);
      values.resize(size);
    }
    const auto bytes = static_cast<std::size_t>(dim) * sizeof(float);
    for (std::int64_t j = 0; j < count; ++j) {
      std::memcpy(keys.data() + j * dim, k + j * stride, bytes);
      std::memcpy(values.data() + j * dim, v + j * stride, bytes);
    }
  }
};

// dots[r] = q[r] . k, the order of additions the same for any kRows.
template <int kRows>
void Dots(const float* q, std::int64_t stride, const float* k, std::int64_t dim, float* dots) {
  Vec4 lo[kRows] = {};
  Vec4 hi[kRows] = {};
  std::int64_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    const Vec4 k0 = Load(k + i);
    const Vec4 k1 = Load(k + i + 4);
    for (int r = 0; r < kRows; ++r) {
      lo[r] += Load(q + r * stride + i) * k0;
      hi[r] += Load(q + r * stride + i + 4) * k1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const Vec4 sum = lo[r] + hi[r];
    dots[r] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (std::int64_t j = i; j < dim; ++j) dots[r] += q[r * stride + j] * k[j];
  }
}

// out[r] = decay[r] * out[r] + weights[r] . v, columns [begin, begin + 4 * kVectors).
template <int kRows, int kVectors>
void MixColumns(const float (*weights)[kKeyTile], const float* v, std::int64_t dim,
                std::int64_t keys, const float* decay, float* out, std::int64_t out_stride) {
  Vec4 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) acc[r][c] = decay[r] * Load(out + r * out_stride + 4 * c);
  }
  for (std::int64_t j = 0; j < keys; ++j, v += dim) {
    for (int c = 0; c < kVectors; ++c) {
      const Vec4 value = Load(v + 4 * c);
      for (int r = 0; r < kRows; ++r) acc[r][c] += weights[r][j] * value;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) Store(out + r * out_stride + 4 * c, acc[r][c]);
  }
}

template <int kRows>
void Mix(const float (*weights)[kKeyTile], const PackedTile& tile, std::int64_t keys,
         const float* decay, float* out, std::int64_t out_stride) {
  const float* v = tile.values.data();
  std::int64_t d = 0;
  for (; d + 8 <= tile.dim; d += 8) {
    MixColumns<kRows, 2>(weights, v + d, tile.dim, keys, decay, out + d, out_stride);
  }
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t i = d; i < tile.dim; ++i) {
      float sum = decay[r] * out[r * out_stride + i];
      for (std::int64_t j = 0; j < keys; ++j) sum += weights[r][j] * v[j * tile.dim + i];
      out[r * out_stride + i] = sum;
    }
  }
}

// Turns scores into weights in place; updates the row's peak and total, returns the factor by which
// what earlier tiles left must shrink.
float Weigh(float* scores, std::int64_t keys, bool first, float& peak, float& total) {
  const float tile_peak = *std::max_element(scores, scores + keys);
  const float new_peak = first ? tile_peak : std::max(peak, tile_peak);
  const float decay = first ? 0.0F : std::exp(peak - new_peak);
  total = first ? 0.0F : total * decay;
  for (std::int64_t j = 0; j < keys; ++j) {
    scores[j] = std::exp(scores[j] - new_peak);
    total += scores[j];
  }
  peak = new_peak;
  return decay;
}

// What a query row carries from one key tile to the next.
struct RowState {
  float peak[kAttentionItemRows];
  float total[kAttentionItemRows];
};

// One key tile's part in query rows [i, i + kRows) of an item; `q` and `out` point at row i.
template <int kRows>
void AttendRows(const AttentionArgs& args, const AttentionItem& item, const PackedTile& tile,
                std::int64_t j0, std::int64_t keys, std::int64_t i, const float* q,
                std::int64_t stride, RowState& state, float* out, std::int64_t out_stride) {
  const float* bias =
      args.bias == nullptr ? nullptr : args.bias + item.head * (2 * args.bias_reach - 1);
  const bool first = j0 == 0;
  float scores[kRows][kKeyTile];
  float decay[kRows];
  for (std::int64_t j = 0; j < keys; ++j) {
    float dots[kRows];
    Dots<kRows>(q, stride, tile.keys.data() + j * tile.dim, tile.dim, dots);
    for (int r = 0; r < kRows; ++r) {
      scores[r][j] = args.scale * dots[r];
      if (bias != nullptr) scores[r][j] += bias[BiasColumn(j0 + j - i - r, args.bias_reach)];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = i + r - item.query_begin;
    decay[r] = Weigh(scores[r], keys, first, state.peak[row], state.total[row]);
    if (first) std::fill_n(out + r * out_stride, tile.dim, 0.0F);
  }
  Mix<kRows>(scores, tile, keys, decay, out, out_stride);
  if (j0 + keys < item.length) return;
  for (int r = 0; r < kRows; ++r) {
    const float inverse = 1.0F / state.total[i + r - item.query_begin];
    for (std::int64_t d = 0; d < tile.dim; ++d) out[r * out_stride + d] *= inverse;
  }
}

}  // namespace

void AttendPortable(const AttentionArgs& args, const AttentionItem& item) {
  static thread_local PackedTile tile;
  RowState state;
  const std::int64_t width = args.heads * args.head_dim;
  const std::int64_t stride = 3 * width;
  const float* base = args.qkv + item.first_row * stride + item.head * args.head_dim;
  float* out = args.out + item.first_row * width + item.head * args.head_dim;
  for (std::int64_t j0 = 0; j0 < item.length; j0 += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, item.length - j0);
    const float* k = base + width + j0 * stride;
    tile.Pack(k, k + width, stride, keys, args.head_dim);
    std::int64_t i = item.query_begin;
    for (; i + kRowTile <= item.query_end; i += kRowTile) {
      AttendRows<kRowTile>(args, item, tile, j0, keys, i, base + i * stride, stride, state,
                           out + i * width, width);
    }
    for (; i < item.query_end; ++i) {
      AttendRows<1>(args, item, tile, j0, keys, i, base + i * stride, stride, state,
                    out + i * width, width);
    }
  }
}

}  // namespace orchid
