#include "orchid/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "paged_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kBlock = KvArena::kBlockTokens;
// Query rows of a tile: its scores and sums stay in the first-level cache.
constexpr std::int64_t kTileRows = 48;

const PagedKernels& Choose(Simd simd, std::int64_t head_dim) {
#if defined(ORCHID_X86_KERNELS)
  if (Allows(simd, Simd::kAvx512) && head_dim % 16 == 0) return Avx512PagedKernels();
  if (Allows(simd, Simd::kAvx2) && HasF16c() && head_dim % 8 == 0) {
    return Avx2PagedKernels();
  }
#endif
  static_cast<void>(simd);
  static_cast<void>(head_dim);
  return PortablePagedKernels();
}

struct Scratch {
  std::vector<float> queries;
  std::vector<float> scores;
  std::vector<float> accumulated;
  std::vector<float> peak;
  std::vector<float> total;

  void Fit(std::int64_t rows, std::int64_t dim) {
    Grow(queries, rows * dim);
    Grow(scores, rows * kPagedKeyTile);
    Grow(accumulated, rows * dim);
    Grow(peak, rows);
    Grow(total, rows);
  }

  static void Grow(std::vector<float>& v, std::int64_t size) {
    if (v.size() < static_cast<std::size_t>(size)) v.resize(static_cast<std::size_t>(size));
  }
};

Scratch& ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::size_t ItemSize(KvType type) { return type == KvType::kFloat16 ? 2 : 4; }

}  // namespace

PagedPlan::PagedPlan(const PagedArgs& args, Simd simd)
    : args_(args),
      kernels_(&Choose(simd, args.head_dim)),
      group_(args.heads / args.kv_heads),
      tile_tokens_(std::max<std::int64_t>(1, kTileRows / group_)) {
  std::size_t partials = 0;
  std::size_t counters = 0;
  for (std::int64_t s = 0; s < args_.access.sequences; ++s) PlanSequence(s, partials, counters);
  if (partials > 0) {
    partials_.reset(new float[partials]);
    finished_ = std::make_unique<std::atomic<std::int32_t>[]>(counters);
  }
  const std::int64_t used = args_.access.offsets[args_.access.sequences];
  const std::int64_t width = args_.heads * args_.head_dim;
  std::fill(args_.out + used * width, args_.out + args_.rows * width, 0.0F);
}

void PagedPlan::PlanSequence(std::int64_t s, std::size_t& partials, std::size_t& counters) {
  const KvAccess& access = args_.access;
  const std::int64_t past = access.past[s];
  const std::int64_t row = access.offsets[s];
  const std::int64_t tokens = access.offsets[s + 1] - row;
  for (std::int64_t i = 0; i < tokens;) {
    const std::int64_t position = past + i;
    const std::int64_t count = std::min(kBlock - position % kBlock, tokens - i);
    writes_.push_back(
        {row + i, position, count, access.table[s * access.table_width + position / kBlock]});
    i += count;
  }
  for (std::int64_t i = 0; i < tokens; i += tile_tokens_) {
    const std::int64_t count = std::min(tile_tokens_, tokens - i);
    const std::int64_t parts = (past + i + count + kPartKeys - 1) / kPartKeys;
    tiles_.push_back({s, row + i, past + i, count, parts, partials, counters});
    if (parts > 1) {
      const std::int64_t floats = count * group_ * (args_.head_dim + 2);
      partials += static_cast<std::size_t>(args_.kv_heads * parts * floats);
      counters += static_cast<std::size_t>(args_.kv_heads);
    }
    for (std::int64_t h = 0; h < args_.kv_heads; ++h) {
      for (std::int64_t p = 0; p < parts; ++p) items_.push_back({tiles_.size() - 1, h, p});
    }
  }
}

void PagedPlan::Write(std::int64_t item) const {
  const WriteItem& work = writes_[static_cast<std::size_t>(item)];
  const std::int64_t dim = args_.head_dim;
  const std::int64_t stride = (args_.heads + 2 * args_.kv_heads) * dim;
  const std::size_t head_bytes =
      static_cast<std::size_t>(kBlock * dim) * ItemSize(args_.layer.type);
  const std::size_t block = static_cast<std::size_t>(work.block) * args_.layer.block_bytes;
  Scratch& scratch = ThreadScratch();
  scratch.Fit(1, dim);
  for (std::int64_t i = 0; i < work.count; ++i) {
    const float* k = args_.qkv + (work.row + i) * stride + args_.heads * dim;
    const float* v = k + args_.kv_heads * dim;
    const std::int64_t position = work.position + i;
    for (std::int64_t h = 0; h < args_.kv_heads; ++h) {
      const float* key = k + h * dim;
      if (args_.rope != nullptr) {
        args_.rope->Rotate(key, position, scratch.queries.data());
        key = scratch.queries.data();
      }
      const std::size_t at = block + static_cast<std::size_t>(h) * head_bytes;
      kernels_->store(key, v + h * dim, dim, position % kBlock, args_.layer.type,
                      args_.layer.keys + at, args_.layer.values + at);
    }
  }
}

void PagedPlan::Attend(std::int64_t index) const {
  const Item& item = items_[static_cast<std::size_t>(index)];
  const Tile& tile = tiles_[item.tile];
  const std::int64_t dim = args_.head_dim;
  const std::int64_t rows = tile.count * group_;
  const std::int64_t stride = (args_.heads + 2 * args_.kv_heads) * dim;
  Scratch& scratch = ThreadScratch();
  scratch.Fit(rows, dim);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = r / group_;
    const float* q =
        args_.qkv + (tile.row + token) * stride + (item.kv_head * group_ + r % group_) * dim;
    float* to = scratch.queries.data() + r * dim;
    if (args_.rope != nullptr) {
      args_.rope->Rotate(q, tile.position + token, to);
    } else {
      std::copy(q, q + dim, to);
    }
    for (std::int64_t d = 0; d < dim; ++d) to[d] *= args_.scale;
  }

  PagedItem work{};
  work.queries = scratch.queries.data();
  work.rows = rows;
  work.group = group_;
  work.first_position = tile.position;
  work.begin = item.part * kPartKeys;
  work.end = std::min(work.begin + kPartKeys, tile.position + tile.count);
  work.table = args_.access.table + tile.sequence * args_.access.table_width;
  work.layer = args_.layer;
  const std::size_t head_bytes =
      static_cast<std::size_t>(kBlock * dim) * ItemSize(args_.layer.type);
  work.layer.keys += static_cast<std::size_t>(item.kv_head) * head_bytes;
  work.layer.values += static_cast<std::size_t>(item.kv_head) * head_bytes;
  work.head_dim = dim;
  work.scores = scratch.scores.data();
  if (tile.parts == 1) {
    work.accumulated = scratch.accumulated.data();
    work.peak = scratch.peak.data();
    work.total = scratch.total.data();
    kernels_->attend(work);
    Finish(tile, item.kv_head, work.accumulated, work.peak, work.total, 0);
    return;
  }
  const std::int64_t floats = rows * (dim + 2);
  float* first =
      partials_.get() + tile.partial + static_cast<std::size_t>(item.kv_head * tile.parts * floats);
  work.accumulated = first + item.part * floats;
  work.peak = work.accumulated + rows * dim;
  work.total = work.peak + rows;
  kernels_->attend(work);
  // Whoever ends last joins the parts, in their order: the result does not depend on who it was.
  std::atomic<std::int32_t>& finished =
      finished_[tile.counter + static_cast<std::size_t>(item.kv_head)];
  if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == tile.parts) {
    Finish(tile, item.kv_head, first, first + rows * dim, first + rows * dim + rows, floats);
  }
}

// Joins the parts of a tile, `stride` floats apart, and divides by the sums of weights.
void PagedPlan::Finish(const Tile& tile, std::int64_t kv_head, const float* accumulated,
                       const float* peak, const float* total, std::int64_t stride) const {
  const std::int64_t dim = args_.head_dim;
  for (std::int64_t r = 0; r < tile.count * group_; ++r) {
    float* out = args_.out + (tile.row + r / group_) * args_.heads * dim +
                 (kv_head * group_ + r % group_) * dim;
    float highest = peak[r];
    for (std::int64_t p = 1; p < tile.parts; ++p) {
      if (total[p * stride + r] > 0.0F) highest = std::max(highest, peak[p * stride + r]);
    }
    float sum = 0.0F;
    for (std::int64_t p = 0; p < tile.parts; ++p) {
      const float weight = total[p * stride + r];
      if (p > 0 && !(weight > 0.0F)) continue;  // the row sees none of this part
      const float factor = std::exp(peak[p * stride + r] - highest);
      const float* from = accumulated + p * stride + r * dim;
      sum = p == 0 ? weight * factor : sum + weight * factor;
      for (std::int64_t d = 0; d < dim; ++d) {
        out[d] = p == 0 ? from[d] * factor : out[d] + from[d] * factor;
      }
    }
    const float inverse = 1.0F / sum;
    for (std::int64_t d = 0; d < dim; ++d) out[d] *= inverse;
  }
}

void PagedPlan::RunAll() const {
  for (std::int64_t i = 0; i < writes(); ++i) Write(i);
  for (std::int64_t i = 0; i < items(); ++i) Attend(i);
}

void SwiGlu(const float* x, std::int64_t rows, std::int64_t width, float* out, Simd simd) {
  const PagedKernels& kernels = Choose(simd, 8);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* gate = x + r * 2 * width;
    kernels.swiglu(gate, gate + width, width, out + r * width);
  }
}

}  // namespace orchid
