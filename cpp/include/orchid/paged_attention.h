// Causal grouped-query attention of new tokens over the keys and values of a KvArena.
//
// For sequence s, its row i at position p = past[s] + i, head h of kv head g = h / (heads /
// kv_heads):
//   out[i, h] = sum_j softmax_j(scale * R_p q[i, h] . R_j k[j, g]) v[j, g],  j in [0, p]
// with R the rotation of RopeTable, or the identity. The new k and v are written into the arena
// first and everything is then read through the block table. A row's result is the same bits
// whatever else is in the run, however its prompt was cut into chunks, and on any number of
// threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "orchid/cpu.h"
#include "orchid/kv_arena.h"
#include "orchid/rope.h"

namespace orchid {

// One call's operands; borrowed, row-major, float32.
struct PagedArgs {
  // [rows, (heads + 2 * kv_heads) * head_dim], q|k|v packed in a row. Rows from
  // access.offsets[sequences] on belong to nobody: they are not read and their output is zero.
  const float* qkv = nullptr;
  std::int64_t rows = 0;
  KvAccess access;  // checked by KvStep
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // a divisor of heads
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  const RopeTable* rope = nullptr;  // ensured for all positions; null for none
  KvLayer layer;
  float* out = nullptr;  // [rows, heads * head_dim]; must not overlap qkv
};

struct PagedKernels;

// Runs `args` in two rounds: all Write items, then all Attend items. Within a round any order and
// any number of threads will do, each item once. A calling thread keeps a scratch that grows once.
class PagedPlan {
 public:
  // Long contexts are cut at multiples of this, so that few sequences still occupy all threads.
  static constexpr std::int64_t kPartKeys = 512;

  // The fastest kernels of `simd` or below that take args.head_dim. `args` is copied.
  PagedPlan(const PagedArgs& args, Simd simd);

  std::int64_t writes() const { return static_cast<std::int64_t>(writes_.size()); }
  void Write(std::int64_t item) const;
  std::int64_t items() const { return static_cast<std::int64_t>(items_.size()); }
  void Attend(std::int64_t item) const;
  void RunAll() const;

 private:
  // New tokens of one sequence that fall into one block.
  struct WriteItem {
    std::int64_t row;
    std::int64_t position;
    std::int64_t count;
    std::int32_t block;
  };
  // Some query tokens of one sequence; `parts` ranges of keys, each attended by itself.
  struct Tile {
    std::int64_t sequence;
    std::int64_t row;
    std::int64_t position;
    std::int64_t count;
    std::int64_t parts;
    std::size_t partial;  // where its partial results begin, for several parts
    std::size_t counter;  // first of kv_heads counters of finished parts
  };
  struct Item {
    std::size_t tile;
    std::int64_t kv_head;
    std::int64_t part;
  };

  void PlanSequence(std::int64_t s, std::size_t& partials, std::size_t& counters);
  void Finish(const Tile& tile, std::int64_t kv_head, const float* accumulated, const float* peak,
              const float* total, std::int64_t stride) const;

  PagedArgs args_;
  const PagedKernels* kernels_;
  std::int64_t group_ = 1;        // query heads of a kv head
  std::int64_t tile_tokens_ = 1;  // query tokens of a tile
  std::vector<WriteItem> writes_;
  std::vector<Tile> tiles_;
  std::vector<Item> items_;
  std::unique_ptr<float[]> partials_;
  std::unique_ptr<std::atomic<std::int32_t>[]> finished_;
};

// out[r, c] = silu(x[r, c]) * x[r, width + c]; x is [rows, 2 * width], out [rows, width].
void SwiGlu(const float* x, std::int64_t rows, std::int64_t width, float* out, Simd simd);

}  // namespace orchid
