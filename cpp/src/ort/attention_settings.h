// How a graph's nodes attend, and the check of a step's feeds that they share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orchid/kv_arena.h"
#include "orchid/paged_attention.h"
#include "ort/api.h"

namespace orchid {

struct AttentionSettings {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t layer = 0;
  float scale = 0.0F;  // 0: 1 / sqrt(head_dim)
  float theta = 0.0F;  // 0: no rotation

  // Reads a node's attributes; throws InvalidInput.
  explicit AttentionSettings(const Ort::ConstKernelInfo& info);

  // Finds the open step that the feeds from input `first` on name (row_offsets, past_lengths,
  // block_table, step), holds it against the graph and the other feeds, and fills in all of `args`
  // but qkv and out. Throws InvalidInput.
  const KvStep& Open(const Ort::KernelContext& context, std::size_t first, std::int64_t rows,
                     std::int64_t head_dim, PagedArgs& args) const;
};

}  // namespace orchid
