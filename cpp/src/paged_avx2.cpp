#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "avx2_math.h"
#include "paged_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kBlock = KvArena::kBlockTokens;
constexpr std::int64_t kTileBlocks = kPagedKeyTile / kBlock;
constexpr float kLargestHalf = 65504.0F;
// Above this many rows a block is used long enough for the hardware to fetch the next one.
constexpr std::int64_t kPrefetchRows = 8;
constexpr std::size_t kCacheLine = 64;

struct Half {
  using T = std::uint16_t;
  static __m256 Load(const T* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void Store(T* p, __m256 x) {
    const __m256 limit = _mm256_set1_ps(kLargestHalf);
    // The bound comes first: max and min return the second operand when one is NaN.
    x = _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), limit), x);
    x = _mm256_min_ps(limit, x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

struct Single {
  using T = float;
  static __m256 Load(const T* p) { return _mm256_loadu_ps(p); }
  static void Store(T* p, __m256 x) { _mm256_storeu_ps(p, x); }
};

template <typename Kv>
void StoreToken(const float* k, const float* v, std::int64_t dim, std::int64_t slot, void* keys,
                void* values) {
  auto* key = static_cast<typename Kv::T*>(keys) + slot;
  auto* value = static_cast<typename Kv::T*>(values) + slot * dim;
  for (std::int64_t d = 0; d < dim; d += 8) {
    typename Kv::T column[8];
    Kv::Store(column, _mm256_loadu_ps(k + d));
    for (std::int64_t i = 0; i < 8; ++i) key[(d + i) * kBlock] = column[i];
    Kv::Store(value + d, _mm256_loadu_ps(v + d));
  }
}

void Store(const float* k, const float* v, std::int64_t dim, std::int64_t slot, KvType type,
           void* keys, void* values) {
  if (type == KvType::kFloat16) {
    StoreToken<Half>(k, v, dim, slot, keys, values);
  } else {
    StoreToken<Single>(k, v, dim, slot, keys, values);
  }
}

// The blocks of one tile of keys.
template <typename Kv>
struct TileBlocks {
  const typename Kv::T* keys[kTileBlocks];
  const typename Kv::T* values[kTileBlocks];
  std::int64_t count = 0;

  TileBlocks(const PagedItem& item, std::int64_t first, std::int64_t key_count) {
    const std::int32_t* table = item.table + first / kBlock;
    count = (key_count + kBlock - 1) / kBlock;
    for (std::int64_t b = 0; b < count; ++b) {
      const std::size_t at = static_cast<std::size_t>(table[b]) * item.layer.block_bytes;
      keys[b] = reinterpret_cast<const typename Kv::T*>(item.layer.keys + at);
      values[b] = reinterpret_cast<const typename Kv::T*>(item.layer.values + at);
    }
  }
};

template <typename T>
void Prefetch(const T* from, std::int64_t items) {
  const auto* bytes = reinterpret_cast<const char*>(from);
  const auto size = static_cast<std::size_t>(items) * sizeof(T);
  for (std::size_t i = 0; i < size; i += kCacheLine) _mm_prefetch(bytes + i, _MM_HINT_T0);
}

// scores[r][16 b ..) = queries[r] . block b, for kRows rows and kBlocks blocks. Each score is one
// chain of multiply-adds over the head, whatever kRows and kBlocks are.
template <typename Kv, int kRows, int kBlocks>
void ScoreMicro(const float* queries, const typename Kv::T* const* keys, std::int64_t dim,
                float* scores) {
  __m256 acc[kRows][2 * kBlocks];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kBlocks; ++c) acc[r][c] = _mm256_setzero_ps();
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    __m256 q[kRows];
    for (int r = 0; r < kRows; ++r) q[r] = _mm256_broadcast_ss(queries + r * dim + d);
#pragma GCC unroll 8
    for (int c = 0; c < 2 * kBlocks; ++c) {
      const __m256 k = Kv::Load(keys[c / 2] + d * kBlock + 8 * (c % 2));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][c] = _mm256_fmadd_ps(q[r], k, acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kBlocks; ++c) {
      _mm256_storeu_ps(scores + r * kPagedKeyTile + 8 * c, acc[r][c]);
    }
  }
}

// accumulated[r][0..8 kVectors) += weights[r] . values of the tile's first `keys` positions.
template <typename Kv, int kRows, int kVectors>
void MixMicro(const float* weights, const typename Kv::T* const* values, std::int64_t keys,
              std::int64_t dim, std::int64_t column, float* accumulated) {
  __m256 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm256_loadu_ps(accumulated + r * dim + 8 * c);
  }
  for (std::int64_t j0 = 0; j0 < keys; j0 += kBlock) {
    const typename Kv::T* value = values[j0 / kBlock] + column;
    const std::int64_t count = std::min(kBlock, keys - j0);
    for (std::int64_t j = 0; j < count; ++j, value += dim) {
      __m256 w[kRows];
      for (int r = 0; r < kRows; ++r) {
        w[r] = _mm256_broadcast_ss(weights + r * kPagedKeyTile + j0 + j);
      }
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) {
        const __m256 v = Kv::Load(value + 8 * c);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r][c] = _mm256_fmadd_ps(w[r], v, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) _mm256_storeu_ps(accumulated + r * dim + 8 * c, acc[r][c]);
  }
}

// Calls f(rows, wide, first_row) over `rows` rows: six at a time with panels two vectors wide, and
// fewer rows with as many vectors as keep a dozen accumulators busy.
template <typename F>
void ForMicroRows(std::int64_t rows, F&& f) {
  std::int64_t r = 0;
  for (; r + 6 <= rows; r += 6)
    f(std::integral_constant<int, 6>{}, std::integral_constant<int, 1>{}, r);
  for (; r + 3 <= rows; r += 3)
    f(std::integral_constant<int, 3>{}, std::integral_constant<int, 2>{}, r);
  if (rows - r == 2) f(std::integral_constant<int, 2>{}, std::integral_constant<int, 2>{}, r);
  if (rows - r == 1) f(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}, r);
}

// All rows against kBlocks blocks from `b` on.
template <typename Kv, int kBlocks>
void ScoreBlocks(const PagedItem& item, const TileBlocks<Kv>& blocks, std::int64_t b) {
  const std::int64_t dim = item.head_dim;
  ForMicroRows(item.rows, [&](auto count, auto wide, std::int64_t r) {
    // Six rows fill the registers with one block; fewer take all kBlocks at once.
    constexpr int kAtOnce = std::min(kBlocks, decltype(wide)::value);
    for (int i = 0; i < kBlocks; i += kAtOnce) {
      ScoreMicro<Kv, decltype(count)::value, kAtOnce>(
          item.queries + r * dim, blocks.keys + b + i, dim,
          item.scores + r * kPagedKeyTile + (b + i) * kBlock);
    }
  });
}

template <typename Kv>
void ScoreTile(const PagedItem& item, const TileBlocks<Kv>& blocks) {
  const std::int64_t size = kBlock * item.head_dim;
  const std::int64_t step = item.rows == 1 ? 4 : 2;
  for (std::int64_t b = 0; b < blocks.count;) {
    const std::int64_t left = blocks.count - b;
    const std::int64_t taken = left >= step ? step : (left >= 2 ? 2 : 1);
    for (std::int64_t i = b; item.rows <= kPrefetchRows && i < b + taken; ++i) {
      Prefetch(blocks.values[i], size);
      if (i + taken < blocks.count) Prefetch(blocks.keys[i + taken], size);
    }
    if (taken == 4) {
      ScoreBlocks<Kv, 4>(item, blocks, b);
    } else if (taken == 2) {
      ScoreBlocks<Kv, 2>(item, blocks, b);
    } else {
      ScoreBlocks<Kv, 1>(item, blocks, b);
    }
    b += taken;
  }
}

template <typename Kv>
void MixTile(const PagedItem& item, const TileBlocks<Kv>& blocks, std::int64_t keys) {
  const std::int64_t dim = item.head_dim;
  ForMicroRows(item.rows, [&](auto count, auto wide, std::int64_t r) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kVectors = 2 * decltype(wide)::value;
    const float* weights = item.scores + r * kPagedKeyTile;
    float* to = item.accumulated + r * dim;
    std::int64_t c = 0;
    for (; c + 8 * kVectors <= dim; c += 8 * kVectors) {
      MixMicro<Kv, kRows, kVectors>(weights, blocks.values, keys, dim, c, to + c);
    }
    for (; c < dim; c += 8) MixMicro<Kv, kRows, 1>(weights, blocks.values, keys, dim, c, to + c);
  });
}

// Largest of scores[0..seen), seen >= 1.
float Peak(const float* scores, std::int64_t seen) {
  const __m256 lowest = _mm256_set1_ps(-std::numeric_limits<float>::max());
  __m256 peak = lowest;
  std::int64_t j = 0;
  for (; j + 8 <= seen; j += 8) peak = _mm256_max_ps(peak, _mm256_loadu_ps(scores + j));
  if (j < seen) {
    const __m256 mask = _mm256_castsi256_ps(LaneMask(seen - j));
    peak = _mm256_max_ps(peak, _mm256_blendv_ps(lowest, _mm256_loadu_ps(scores + j), mask));
  }
  return MaxLane(peak);
}

// scores[0..seen) = exp(scores - peak), scores[seen..keys) = 0; returns the sum. `keys` is rounded
// up to whole vectors, which the scratch has room for.
float Exponentiate(float* scores, float peak, std::int64_t seen, std::int64_t keys) {
  const __m256 shift = _mm256_set1_ps(peak);
  __m256 sum = _mm256_setzero_ps();
  std::int64_t j = 0;
  for (; j < seen; j += 8) {
    __m256 e = Exp(_mm256_sub_ps(_mm256_loadu_ps(scores + j), shift));
    if (seen - j < 8) e = _mm256_and_ps(e, _mm256_castsi256_ps(LaneMask(seen - j)));
    _mm256_storeu_ps(scores + j, e);
    sum = _mm256_add_ps(sum, e);
  }
  for (; j < keys; j += 8) _mm256_storeu_ps(scores + j, _mm256_setzero_ps());
  return SumLanes(sum);
}

void Scale(float* x, float factor, std::int64_t count) {
  const __m256 f = _mm256_set1_ps(factor);
  for (std::int64_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(f, _mm256_loadu_ps(x + i)));
  }
}

void WeighTile(const PagedItem& item, std::int64_t tile, std::int64_t keys) {
  for (std::int64_t r = 0; r < item.rows; ++r) {
    float* scores = item.scores + r * kPagedKeyTile;
    const std::int64_t seen =
        std::clamp<std::int64_t>(item.first_position + r / item.group + 1 - tile, 0, keys);
    if (seen == 0) {
      std::fill_n(scores, keys, 0.0F);
      continue;
    }
    const float peak = std::max(item.peak[r], Peak(scores, seen));
    const float total = Exponentiate(scores, peak, seen, keys);
    if (item.total[r] > 0.0F && peak != item.peak[r]) {
      const float decay = _mm256_cvtss_f32(Exp(_mm256_set1_ps(item.peak[r] - peak)));
      Scale(item.accumulated + r * item.head_dim, decay, item.head_dim);
      item.total[r] *= decay;
    }
    item.total[r] += total;
    item.peak[r] = peak;
  }
}

template <typename Kv>
void AttendAs(const PagedItem& item) {
  std::fill_n(item.accumulated, item.rows * item.head_dim, 0.0F);
  std::fill_n(item.peak, item.rows, -std::numeric_limits<float>::max());
  std::fill_n(item.total, item.rows, 0.0F);
  for (std::int64_t tile = item.begin; tile < item.end; tile += kPagedKeyTile) {
    const std::int64_t keys = std::min(kPagedKeyTile, item.end - tile);
    const TileBlocks<Kv> blocks(item, tile, keys);
    ScoreTile(item, blocks);
    WeighTile(item, tile, keys);
    MixTile(item, blocks, keys);
  }
}

void Attend(const PagedItem& item) {
  if (item.layer.type == KvType::kFloat16) {
    AttendAs<Half>(item);
  } else {
    AttendAs<Single>(item);
  }
}

void Glu(const float* gate, const float* up, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 g = Silu(_mm256_loadu_ps(gate + i));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(g, _mm256_loadu_ps(up + i)));
  }
  if (i < count) {
    const __m256i mask = LaneMask(count - i);
    const __m256 g = Silu(_mm256_maskload_ps(gate + i, mask));
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(g, _mm256_maskload_ps(up + i, mask)));
  }
}

}  // namespace

const PagedKernels& Avx2PagedKernels() {
  static const PagedKernels kernels{Store, Attend, Glu};
  return kernels;
}

}  // namespace orchid
