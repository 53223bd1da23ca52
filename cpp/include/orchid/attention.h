// Bidirectional multi-head attention over flattened sequences, without padding.
//
// For sequence s with rows [b, e), head h, row i in it:
//   out[i, h] = sum_j softmax_j(scale * q[i, h] . k[j, h] + bias(h, j - i)) v[j, h],  j in [b, e)
// The result of a sequence is the same bits whatever else is in the batch and however the work is
// divided among threads: nothing but the sequence's own length decides the order of operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orchid/cpu.h"

namespace orchid {

// One call's operands; borrowed, row-major, float32.
struct AttentionArgs {
  const float* qkv = nullptr;             // [rows, 3 * heads * head_dim], q|k|v packed in a row
  const std::int32_t* offsets = nullptr;  // [sequences + 1], checked by CheckRowOffsets
  std::int64_t sequences = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  const float* bias = nullptr;  // [heads, 2 * bias_reach - 1] or null
  std::int64_t bias_reach = 0;  // distance d uses column clamp(d, +-(reach - 1)) + reach - 1
  float* out = nullptr;         // [rows, heads * head_dim]; must not overlap qkv
};

// Query rows one work item covers. Long sequences become several items.
constexpr std::int64_t kAttentionItemRows = 240;

// Runs `args` one item at a time, on any number of threads: Run(i) may be called concurrently for
// different i, each i once. A calling thread keeps a scratch that grows once, to 512 rows of K and
// V of one head and some scores.
class AttentionPlan {
 public:
  // The fastest kernel of `simd` or below that takes args.head_dim. `args` is copied.
  AttentionPlan(const AttentionArgs& args, Simd simd);

  std::int64_t items() const { return items_; }
  void Run(std::int64_t item) const;
  void RunAll() const;

 private:
  AttentionArgs args_;
  bool wide_;
  std::int64_t items_ = 0;
};

}  // namespace orchid
