#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "orchid/half.h"
#include "paged_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kBlock = KvArena::kBlockTokens;
constexpr float kLargestHalf = 65504.0F;

struct Half {
  using T = std::uint16_t;
  static float Load(T x) { return FloatFromHalf(x); }
  static T Store(float x) {
    return HalfFromFloat(std::min(std::max(x, -kLargestHalf), kLargestHalf));
  }
};

struct Single {
  using T = float;
  static float Load(T x) { return x; }
  static T Store(float x) { return x; }
};

template <typename Kv>
void StoreToken(const float* k, const float* v, std::int64_t dim, std::int64_t slot, void* keys,
                void* values) {
  auto* key = static_cast<typename Kv::T*>(keys) + slot;
  auto* value = static_cast<typename Kv::T*>(values) + slot * dim;
  for (std::int64_t d = 0; d < dim; ++d) {
    key[d * kBlock] = Kv::Store(k[d]);
    value[d] = Kv::Store(v[d]);
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

template <typename Kv>
const typename Kv::T* BlockOf(const PagedItem& item, const unsigned char* base, std::int64_t key) {
  const auto block = static_cast<std::size_t>(item.table[key / kBlock]);
  return reinterpret_cast<const typename Kv::T*>(base + block * item.layer.block_bytes);
}

// scores[0..16) = q . keys of one block
template <typename Kv>
void ScoreBlock(const float* q, const typename Kv::T* keys, std::int64_t dim, float* scores) {
  float sum[kBlock] = {};
  for (std::int64_t d = 0; d < dim; ++d) {
    for (std::int64_t j = 0; j < kBlock; ++j) sum[j] += q[d] * Kv::Load(keys[d * kBlock + j]);
  }
  std::copy(sum, sum + kBlock, scores);
}

// One row against one tile of keys, of which it sees the first `seen` (at least one).
template <typename Kv>
void AttendRow(const PagedItem& item, std::int64_t row, std::int64_t tile, std::int64_t seen) {
  const std::int64_t dim = item.head_dim;
  float* scores = item.scores;
  for (std::int64_t j = 0; j < seen; j += kBlock) {
    ScoreBlock<Kv>(item.queries + row * dim, BlockOf<Kv>(item, item.layer.keys, tile + j), dim,
                   scores + j);
  }
  const float peak = std::max(item.peak[row], *std::max_element(scores, scores + seen));
  const float decay = std::exp(item.peak[row] - peak);
  float* accumulated = item.accumulated + row * dim;
  for (std::int64_t d = 0; d < dim; ++d) accumulated[d] *= decay;
  float total = item.total[row] * decay;
  for (std::int64_t j = 0; j < seen; ++j) {
    const float weight = std::exp(scores[j] - peak);
    total += weight;
    const auto* value = BlockOf<Kv>(item, item.layer.values, tile + j) + (tile + j) % kBlock * dim;
    for (std::int64_t d = 0; d < dim; ++d) accumulated[d] += weight * Kv::Load(value[d]);
  }
  item.peak[row] = peak;
  item.total[row] = total;
}

template <typename Kv>
void AttendAs(const PagedItem& item) {
  std::fill_n(item.accumulated, item.rows * item.head_dim, 0.0F);
  std::fill_n(item.peak, item.rows, -std::numeric_limits<float>::max());
  std::fill_n(item.total, item.rows, 0.0F);
  for (std::int64_t tile = item.begin; tile < item.end; tile += kPagedKeyTile) {
    const std::int64_t keys = std::min(kPagedKeyTile, item.end - tile);
    for (std::int64_t r = 0; r < item.rows; ++r) {
      const std::int64_t seen = std::min(item.first_position + r / item.group + 1 - tile, keys);
      if (seen > 0) AttendRow<Kv>(item, r, tile, seen);
    }
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
  for (std::int64_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

}  // namespace

const PagedKernels& PortablePagedKernels() {
  static const PagedKernels kernels{Store, Attend, Glu};
  return kernels;
}

}  // namespace orchid
