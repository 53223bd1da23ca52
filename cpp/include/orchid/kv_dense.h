// Keys and values of an open step as stock decoders have them: one dense tensor of each for every
// layer, [sequences, kv_heads, tokens, head_dim] float.
#pragma once

#include <cstdint>
#include <vector>

#include "orchid/kv_arena.h"

namespace orchid {

// One layer's tensors, borrowed.
struct DenseLayer {
  float* keys = nullptr;
  float* values = nullptr;
};

struct ConstDenseLayer {
  const float* keys = nullptr;
  const float* values = nullptr;
};

// Fills tensors of `width` tokens with what the step's sequences have cached. A sequence of fewer
// tokens begins later, so that all end together; what is before it is zero. The layers are shared
// out to `threads` threads, the calling one among them. Throws InvalidInput when a sequence has
// more than `width` tokens or the layers are not as many as the arena's.
void GatherPast(const KvStep& step, std::int64_t width, const std::vector<DenseLayer>& layers,
                int threads);

// Writes the step's own tokens into their blocks, out of tensors of `width` + rows tokens that have
// them behind the first `width`. Every sequence must have as many rows. Throws as GatherPast does;
// nothing is written then. The tokens count once the step is committed.
void ScatterRows(const KvStep& step, std::int64_t width, const std::vector<ConstDenseLayer>& layers,
                 int threads);

}  // namespace orchid
