#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "avx512_math.h"
#include "paged_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kBlock = KvArena::kBlockTokens;
constexpr std::int64_t kTileBlocks = kPagedKeyTile / kBlock;
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kCacheLine = 64;
// Blocks that a few rows take at once; their keys or values are in flight while others are used.
constexpr std::int64_t kPanel = 4;

static_assert(kBlock == kLanes, "a key's block is one vector wide");

struct Half {
  using T = std::uint16_t;
  static __m512 Load(const T* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

struct Single {
  using T = float;
  static __m512 Load(const T* p) { return _mm512_loadu_ps(p); }
};

// The blocks of one tile of keys, and what to ask for while it is worked on.
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

// Asks for `lines` lines, spread over the steps of a loop.
template <typename T>
inline void Ask(const T* from, std::int64_t step, std::int64_t lines) {
  const char* bytes = reinterpret_cast<const char*>(from) + step * lines * kCacheLine;
  for (std::int64_t i = 0; i < lines; ++i) _mm_prefetch(bytes + i * kCacheLine, _MM_HINT_T0);
}

// scores[r][16 b ..) = queries[r] . block b, for kRows rows and kBlocks blocks. Each score is one
// chain of multiply-adds over the head, whatever kRows and kBlocks are. `next` is asked for.
template <typename Kv, int kRows, int kBlocks, bool kAsk>
void ScoreMicro(const float* queries, const typename Kv::T* const* keys, std::int64_t dim,
                const typename Kv::T* const* next, float* scores) {
  constexpr std::int64_t kStepBytes = kBlock * static_cast<std::int64_t>(sizeof(typename Kv::T));
  constexpr std::int64_t kSteps = std::max<std::int64_t>(1, kCacheLine / kStepBytes);
  __m512 acc[kRows][kBlocks];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) acc[r][b] = _mm512_setzero_ps();
  }
  for (std::int64_t d = 0; d < dim; d += kSteps) {
    if (kAsk) {
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) Ask(next[b], d / kSteps, 1);
    }
#pragma GCC unroll 2
    for (std::int64_t i = 0; i < kSteps; ++i) {
      __m512 k[kBlocks];
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) k[b] = Kv::Load(keys[b] + (d + i) * kBlock);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 q = _mm512_set1_ps(queries[r * dim + d + i]);
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) acc[r][b] = _mm512_fmadd_ps(q, k[b], acc[r][b]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(scores + r * kPagedKeyTile + kLanes * b, acc[r][b]);
    }
  }
}

// accumulated[r][0..16 kVectors) += weights[r] . values of the tile's first `keys` positions.
template <typename Kv, int kRows, int kVectors>
void MixMicro(const float* weights, const typename Kv::T* const* values, std::int64_t keys,
              std::int64_t dim, std::int64_t column, float* accumulated) {
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      acc[r][c] = _mm512_loadu_ps(accumulated + r * dim + kLanes * c);
    }
  }
  for (std::int64_t j0 = 0; j0 < keys; j0 += kBlock) {
    const typename Kv::T* value = values[j0 / kBlock] + column;
    const std::int64_t count = std::min(kBlock, keys - j0);
    for (std::int64_t j = 0; j < count; ++j, value += dim) {
      __m512 v[kVectors];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) v[c] = Kv::Load(value + kLanes * c);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 w = _mm512_set1_ps(weights[r * kPagedKeyTile + j0 + j]);
#pragma GCC unroll 4
        for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm512_fmadd_ps(w, v[c], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      _mm512_storeu_ps(accumulated + r * dim + kLanes * c, acc[r][c]);
    }
  }
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls f(rows, vectors, first_row) over `rows` rows: a dozen at a time two vectors wide, few rows
// with as many vectors as keep a dozen accumulators busy.
template <typename F>
void ForMicroRows(std::int64_t rows, F&& f) {
  std::int64_t r = 0;
  for (; r + 12 <= rows; r += 12) f(Constant<12>{}, Constant<2>{}, r);
  for (; r + 6 <= rows; r += 6) f(Constant<6>{}, Constant<2>{}, r);
  for (; r + 3 <= rows; r += 3) f(Constant<3>{}, Constant<4>{}, r);
  if (rows - r == 2) f(Constant<2>{}, Constant<4>{}, r);
  if (rows - r == 1) f(Constant<1>{}, Constant<4>{}, r);
}

// All rows against `count` blocks from `b` on, at most kPanel.
template <typename Kv>
void ScorePanel(const PagedItem& item, const TileBlocks<Kv>& blocks, std::int64_t b,
                std::int64_t count) {
  const std::int64_t dim = item.head_dim;
  ForMicroRows(item.rows, [&](auto rows, auto wide, std::int64_t r) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kWide = decltype(wide)::value;
    // Many rows use a block long enough for the hardware to fetch the next one.
    constexpr bool kAsk = kRows <= 3;
    const float* queries = item.queries + r * dim;
    float* scores = item.scores + r * kPagedKeyTile + b * kBlock;
    std::int64_t i = 0;
    for (; i + kWide <= count; i += kWide) {
      ScoreMicro<Kv, kRows, kWide, kAsk>(queries, blocks.keys + b + i, dim, blocks.values + b + i,
                                         scores + i * kBlock);
    }
    for (; i < count; ++i) {
      ScoreMicro<Kv, kRows, 1, kAsk>(queries, blocks.keys + b + i, dim, blocks.values + b + i,
                                     scores + i * kBlock);
    }
  });
}

template <typename Kv>
void MixTile(const PagedItem& item, const TileBlocks<Kv>& blocks, std::int64_t keys) {
  const std::int64_t dim = item.head_dim;
  ForMicroRows(item.rows, [&](auto rows, auto wide, std::int64_t r) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kVectors = decltype(wide)::value;
    const float* weights = item.scores + r * kPagedKeyTile;
    float* to = item.accumulated + r * dim;
    std::int64_t c = 0;
    for (; c + kLanes * kVectors <= dim; c += kLanes * kVectors) {
      MixMicro<Kv, kRows, kVectors>(weights, blocks.values, keys, dim, c, to + c);
    }
    for (; c < dim; c += kLanes) {
      MixMicro<Kv, kRows, 1>(weights, blocks.values, keys, dim, c, to + c);
    }
  });
}

__mmask16 LanesBelow(std::int64_t count) {
  return static_cast<__mmask16>((1U << std::min(count, kLanes)) - 1U);
}

// Largest of scores[0..seen), seen >= 1.
float Peak(const float* scores, std::int64_t seen) {
  __m512 peak = _mm512_set1_ps(-std::numeric_limits<float>::max());
  for (std::int64_t j = 0; j < seen; j += kLanes) {
    peak = _mm512_mask_max_ps(peak, LanesBelow(seen - j), peak, _mm512_loadu_ps(scores + j));
  }
  return _mm512_reduce_max_ps(peak);
}

// scores[0..seen) = exp(scores - peak), scores[seen..keys) = 0; returns the sum. `keys` is rounded
// up to whole vectors, which the scratch has room for.
float Exponentiate(float* scores, float peak, std::int64_t seen, std::int64_t keys) {
  const __m512 shift = _mm512_set1_ps(peak);
  __m512 sum = _mm512_setzero_ps();
  std::int64_t j = 0;
  for (; j < seen; j += kLanes) {
    __m512 e = Exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + j), shift));
    e = _mm512_maskz_mov_ps(LanesBelow(seen - j), e);
    _mm512_storeu_ps(scores + j, e);
    sum = _mm512_add_ps(sum, e);
  }
  for (; j < keys; j += kLanes) _mm512_storeu_ps(scores + j, _mm512_setzero_ps());
  return SumLanes16(sum);
}

void Scale(float* x, float factor, std::int64_t count) {
  const __m512 f = _mm512_set1_ps(factor);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    _mm512_storeu_ps(x + i, _mm512_mul_ps(f, _mm512_loadu_ps(x + i)));
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
      const float decay = _mm512_cvtss_f32(Exp16(_mm512_set1_ps(item.peak[r] - peak)));
      Scale(item.accumulated + r * item.head_dim, decay, item.head_dim);
      item.total[r] *= decay;
    }
    item.total[r] += total;
    item.peak[r] = peak;
  }
}

// Asks for the keys of the tile after this one, as far as the item reaches.
template <typename Kv>
void AskForKeys(const PagedItem& item, std::int64_t tile, std::int64_t b) {
  const std::int64_t key = tile + kPagedKeyTile + b * kBlock;
  if (key >= item.end) return;
  const std::size_t at =
      static_cast<std::size_t>(item.table[key / kBlock]) * item.layer.block_bytes;
  const auto bytes = kBlock * item.head_dim * static_cast<std::int64_t>(sizeof(typename Kv::T));
  Ask(item.layer.keys + at, 0, bytes / kCacheLine);
}

template <typename Kv>
void AttendAs(const PagedItem& item) {
  std::fill_n(item.accumulated, item.rows * item.head_dim, 0.0F);
  std::fill_n(item.peak, item.rows, -std::numeric_limits<float>::max());
  std::fill_n(item.total, item.rows, 0.0F);
  for (std::int64_t tile = item.begin; tile < item.end; tile += kPagedKeyTile) {
    const std::int64_t keys = std::min(kPagedKeyTile, item.end - tile);
    const TileBlocks<Kv> blocks(item, tile, keys);
    for (std::int64_t b = 0; b < blocks.count; b += kPanel) {
      ScorePanel(item, blocks, b, std::min(kPanel, blocks.count - b));
      for (std::int64_t i = b; item.rows <= 3 && i < b + kPanel; ++i) AskForKeys<Kv>(item, tile, i);
    }
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

}  // namespace

const PagedKernels& Avx512PagedKernels() {
  static const PagedKernels kernels{Avx2PagedKernels().store, Attend, Avx2PagedKernels().swiglu};
  return kernels;
}

}  // namespace orchid
