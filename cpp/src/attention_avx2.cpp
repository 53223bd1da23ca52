#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "attention_kernels.h"
#include "avx2_math.h"

namespace orchid {
namespace {

constexpr std::int64_t kKeyTile = 256;   // keys per online-softmax step
constexpr std::int64_t kQueryTile = 24;  // query rows whose scores stay in the first-level cache
constexpr std::int64_t kPanel = 16;      // keys side by side in the packed K
constexpr int kMicroRows = 6;            // 6 x 16 accumulators fill twelve of sixteen registers

struct Scratch {
  alignas(32) float keys[kKeyTile * kMaxWideHeadDim];    // [panel][head_dim][kPanel]
  alignas(32) float values[kKeyTile * kMaxWideHeadDim];  // [key][head_dim]
  alignas(32) float queries[kQueryTile * kMaxWideHeadDim];
  alignas(32) float scores[kQueryTile * kKeyTile];
  alignas(32) float bias_line[kKeyTile + kQueryTile];
  float peak[kAttentionItemRows];
  float total[kAttentionItemRows];
};

Scratch& ThreadScratch() {
  // On the heap and untouched until used: narrow heads never make the far pages resident.
  static thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
  return *scratch;
}

// Writes the transpose of 8 rows of 8 floats, rows `kPanel` apart in `out`.
void Transpose8x8(const float* const rows[8], std::int64_t column, float* out) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + column);
  __m256 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    const __m256* u = t + 4 * half;
    r[4 * half] = _mm256_shuffle_ps(u[0], u[2], 0x44);
    r[4 * half + 1] = _mm256_shuffle_ps(u[0], u[2], 0xEE);
    r[4 * half + 2] = _mm256_shuffle_ps(u[1], u[3], 0x44);
    r[4 * half + 3] = _mm256_shuffle_ps(u[1], u[3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_store_ps(out + i * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_store_ps(out + (i + 4) * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// K rows [0, count) at `stride` into panels; the last panel is filled up with zeros.
void PackKeys(const float* k, std::int64_t stride, std::int64_t count, std::int64_t dim,
              float* packed) {
  alignas(32) static const float zeros[kMaxWideHeadDim] = {};
  for (std::int64_t j = 0; j < count; j += kPanel, packed += dim * kPanel) {
    for (std::int64_t half = 0; half < kPanel; half += 8) {
      const float* rows[8];
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::int64_t key = j + half + i;
        rows[i] = key < count ? k + key * stride : zeros;
      }
      for (std::int64_t d = 0; d < dim; d += 8) Transpose8x8(rows, d, packed + d * kPanel + half);
    }
  }
}

void PackValues(const float* v, std::int64_t stride, std::int64_t count, std::int64_t dim,
                float* packed) {
  for (std::int64_t j = 0; j < count; ++j) {
    std::memcpy(packed + j * dim, v + j * stride, static_cast<std::size_t>(dim) * sizeof(float));
  }
}

void ScaleQueries(const float* q, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                  float scale, float* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::int64_t r = 0; r < rows; ++r, q += stride, out += dim) {
    for (std::int64_t d = 0; d < dim; d += 8) {
      _mm256_store_ps(out + d, _mm256_mul_ps(factor, _mm256_loadu_ps(q + d)));
    }
  }
}

// scores[r][0..16) = queries[r] . panel
template <int kRows>
void ScoreMicro(const float* queries, const float* panel, std::int64_t dim, float* scores) {
  __m256 lo[kRows];
  __m256 hi[kRows];
  for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm256_setzero_ps();
  for (std::int64_t d = 0; d < dim; ++d) {
    const __m256 k0 = _mm256_load_ps(panel + d * kPanel);
    const __m256 k1 = _mm256_load_ps(panel + d * kPanel + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 q = _mm256_broadcast_ss(queries + r * dim + d);
      lo[r] = _mm256_fmadd_ps(q, k0, lo[r]);
      hi[r] = _mm256_fmadd_ps(q, k1, hi[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm256_store_ps(scores + r * kKeyTile, lo[r]);
    _mm256_store_ps(scores + r * kKeyTile + 8, hi[r]);
  }
}

// How one online-softmax step updates a row of the output.
struct Blend {
  const float* decay;    // factor of what earlier key tiles left in `out`; null on the first tile
  const float* inverse;  // 1 / total; null until the last tile
};

// out[r][0..8*kVectors) = (decay * out + weights[r] . values) * inverse
template <int kRows, int kVectors>
void MixMicro(const float* weights, const float* values, std::int64_t keys, std::int64_t dim,
              const Blend& blend, float* out, std::int64_t out_stride) {
  __m256 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      acc[r][c] = blend.decay == nullptr
                      ? _mm256_setzero_ps()
                      : _mm256_mul_ps(_mm256_broadcast_ss(blend.decay + r),
                                      _mm256_loadu_ps(out + r * out_stride + 8 * c));
    }
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    __m256 v[kVectors];
    for (int c = 0; c < kVectors; ++c) v[c] = _mm256_load_ps(values + j * dim + 8 * c);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 w = _mm256_broadcast_ss(weights + r * kKeyTile + j);
      for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm256_fmadd_ps(w, v[c], acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m256 factor =
        blend.inverse == nullptr ? _mm256_set1_ps(1.0F) : _mm256_broadcast_ss(blend.inverse + r);
    for (int c = 0; c < kVectors; ++c) {
      _mm256_storeu_ps(out + r * out_stride + 8 * c, _mm256_mul_ps(factor, acc[r][c]));
    }
  }
}

// Calls f(std::integral_constant<int, R>, first_row) over `rows` rows, six at a time.
template <typename F>
void ForMicroRows(std::int64_t rows, F&& f) {
  std::int64_t r = 0;
  for (; r + kMicroRows <= rows; r += kMicroRows) f(std::integral_constant<int, kMicroRows>{}, r);
  switch (rows - r) {
    case 5:
      return f(std::integral_constant<int, 5>{}, r);
    case 4:
      return f(std::integral_constant<int, 4>{}, r);
    case 3:
      return f(std::integral_constant<int, 3>{}, r);
    case 2:
      return f(std::integral_constant<int, 2>{}, r);
    case 1:
      return f(std::integral_constant<int, 1>{}, r);
    default:
      return;
  }
}

void ScoreTile(const Scratch& scratch, std::int64_t rows, std::int64_t keys, std::int64_t dim,
               float* scores) {
  for (std::int64_t j = 0; j < keys; j += kPanel) {
    ForMicroRows(rows, [&](auto count, std::int64_t r) {
      ScoreMicro<decltype(count)::value>(scratch.queries + r * dim, scratch.keys + j * dim, dim,
                                         scores + r * kKeyTile + j);
    });
  }
}

void MixTile(const Scratch& scratch, std::int64_t rows, std::int64_t keys, std::int64_t dim,
             const Blend& blend, float* out, std::int64_t out_stride) {
  ForMicroRows(rows, [&](auto count, std::int64_t r) {
    constexpr int kRows = decltype(count)::value;
    const Blend part{blend.decay == nullptr ? nullptr : blend.decay + r,
                     blend.inverse == nullptr ? nullptr : blend.inverse + r};
    const float* weights = scratch.scores + r * kKeyTile;
    float* target = out + r * out_stride;
    std::int64_t c = 0;
    for (; c + 16 <= dim; c += 16) {
      MixMicro<kRows, 2>(weights, scratch.values + c, keys, dim, part, target + c, out_stride);
    }
    if (c < dim) {
      MixMicro<kRows, 1>(weights, scratch.values + c, keys, dim, part, target + c, out_stride);
    }
  });
}

// Adds `bias` (null for none) to scores[0..keys), and returns the largest.
float AddBias(float* scores, const float* bias, std::int64_t keys) {
  const __m256 lowest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 peak = lowest;
  std::int64_t j = 0;
  for (; j + 8 <= keys; j += 8) {
    __m256 s = _mm256_load_ps(scores + j);
    if (bias != nullptr) {
      s = _mm256_add_ps(s, _mm256_loadu_ps(bias + j));
      _mm256_store_ps(scores + j, s);
    }
    peak = _mm256_max_ps(peak, s);
  }
  if (j < keys) {
    const __m256i mask = LaneMask(keys - j);
    __m256 s = _mm256_load_ps(scores + j);
    if (bias != nullptr) s = _mm256_add_ps(s, _mm256_maskload_ps(bias + j, mask));
    s = _mm256_blendv_ps(lowest, s, _mm256_castsi256_ps(mask));
    _mm256_store_ps(scores + j, s);
    peak = _mm256_max_ps(peak, s);
  }
  return MaxLane(peak);
}

// scores = exp(scores - peak); returns their sum over [0, keys).
float Exponentiate(float* scores, float peak, std::int64_t keys) {
  const __m256 shift = _mm256_set1_ps(peak);
  __m256 sum = _mm256_setzero_ps();
  std::int64_t j = 0;
  for (; j + 8 <= keys; j += 8) {
    const __m256 e = Exp(_mm256_sub_ps(_mm256_load_ps(scores + j), shift));
    _mm256_store_ps(scores + j, e);
    sum = _mm256_add_ps(sum, e);
  }
  if (j < keys) {
    const __m256 mask = _mm256_castsi256_ps(LaneMask(keys - j));
    const __m256 e = Exp(_mm256_sub_ps(_mm256_load_ps(scores + j), shift));
    _mm256_store_ps(scores + j, e);
    sum = _mm256_add_ps(sum, _mm256_and_ps(mask, e));
  }
  return SumLanes(sum);
}

// Biases of one query tile against one key tile, as a line over the distance key - query.
// Row r of the tile starts at line + (rows - 1 - r).
const float* BiasLine(const AttentionArgs& args, std::int64_t head, std::int64_t first_query,
                      std::int64_t rows, std::int64_t first_key, std::int64_t keys,
                      float* scratch) {
  if (args.bias == nullptr) return nullptr;
  const float* table = args.bias + head * (2 * args.bias_reach - 1);
  const std::int64_t nearest = first_key - (first_query + rows - 1);
  const std::int64_t furthest = first_key + keys - 1 - first_query;
  if (nearest > -args.bias_reach && furthest < args.bias_reach) {
    return table + nearest + args.bias_reach - 1;
  }
  for (std::int64_t x = 0; x < keys + rows - 1; ++x) {
    scratch[x] = table[BiasColumn(nearest + x, args.bias_reach)];
  }
  return scratch;
}

// Softmax weights of one query tile, given what earlier key tiles left in peak and total.
void WeighTile(Scratch& scratch, const float* bias_line, std::int64_t rows, std::int64_t keys,
               bool first, bool last, float* peak, float* total, float* decay, float* inverse) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* scores = scratch.scores + r * kKeyTile;
    const float* bias = bias_line == nullptr ? nullptr : bias_line + (rows - 1 - r);
    const float tile_peak = AddBias(scores, bias, keys);
    const float new_peak = first ? tile_peak : std::max(peak[r], tile_peak);
    const float tile_total = Exponentiate(scores, new_peak, keys);
    decay[r] = first ? 0.0F : _mm256_cvtss_f32(Exp(_mm256_set1_ps(peak[r] - new_peak)));
    total[r] = first ? tile_total : total[r] * decay[r] + tile_total;
    peak[r] = new_peak;
    if (last) inverse[r] = 1.0F / total[r];
  }
}

}  // namespace

void AttendAvx2(const AttentionArgs& args, const AttentionItem& item) {
  Scratch& scratch = ThreadScratch();
  const std::int64_t dim = args.head_dim;
  const std::int64_t width = args.heads * dim;
  const std::int64_t stride = 3 * width;
  const float* base = args.qkv + item.first_row * stride + item.head * dim;
  float* out = args.out + item.first_row * width + item.head * dim;
  float decay[kQueryTile];
  float inverse[kQueryTile];

  for (std::int64_t j0 = 0; j0 < item.length; j0 += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, item.length - j0);
    const bool first = j0 == 0;
    const bool last = j0 + keys == item.length;
    PackKeys(base + width + j0 * stride, stride, keys, dim, scratch.keys);
    PackValues(base + 2 * width + j0 * stride, stride, keys, dim, scratch.values);
    for (std::int64_t i0 = item.query_begin; i0 < item.query_end; i0 += kQueryTile) {
      const std::int64_t rows = std::min(kQueryTile, item.query_end - i0);
      const std::int64_t state = i0 - item.query_begin;
      ScaleQueries(base + i0 * stride, stride, rows, dim, args.scale, scratch.queries);
      ScoreTile(scratch, rows, keys, dim, scratch.scores);
      const float* line = BiasLine(args, item.head, i0, rows, j0, keys, scratch.bias_line);
      WeighTile(scratch, line, rows, keys, first, last, scratch.peak + state, scratch.total + state,
                decay, inverse);
      const Blend blend{first ? nullptr : decay, last ? inverse : nullptr};
      MixTile(scratch, rows, keys, dim, blend, out + i0 * width, width);
    }
  }
}

}  // namespace orchid
