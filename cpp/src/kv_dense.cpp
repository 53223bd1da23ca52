#include "orchid/kv_dense.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>

#include "orchid/error.h"
#include "orchid/half.h"

namespace orchid {
namespace {

constexpr std::int64_t kTokens = KvArena::kBlockTokens;

float ToFloat(float value) { return value; }
float ToFloat(std::uint16_t value) { return FloatFromHalf(value); }

template <typename Item>
Item FromFloat(float value) {
  if constexpr (std::is_same_v<Item, float>) {
    return value;
  } else {
    return HalfFromFloat(value);
  }
}

// Copies `count` tokens of one head, from `token` of a block on, to rows of `dim`.
template <typename Item>
void ReadBlock(const Item* keys, const Item* values, std::int64_t token, std::int64_t count,
               std::int64_t dim, float* out_keys, float* out_values) {
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t d = 0; d < dim; ++d) {
      out_keys[t * dim + d] = ToFloat(keys[d * kTokens + token + t]);
    }
  }
  for (std::int64_t i = 0; i < count * dim; ++i) out_values[i] = ToFloat(values[token * dim + i]);
}

template <typename Item>
void WriteBlock(const float* keys, const float* values, std::int64_t token, std::int64_t count,
                std::int64_t dim, Item* out_keys, Item* out_values) {
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t d = 0; d < dim; ++d) {
      out_keys[d * kTokens + token + t] = FromFloat<Item>(keys[t * dim + d]);
    }
  }
  for (std::int64_t i = 0; i < count * dim; ++i) {
    out_values[token * dim + i] = FromFloat<Item>(values[i]);
  }
}

// Visits positions [begin, end) of sequence `s` block by block: (block, token in it, count, at).
template <typename Visit>
void ForBlocks(const KvAccess& access, std::int64_t s, std::int64_t begin, std::int64_t end,
               Visit visit) {
  const std::int32_t* table = access.table + s * access.table_width;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t token = at % kTokens;
    const std::int64_t count = std::min(kTokens - token, end - at);
    visit(static_cast<std::size_t>(table[at / kTokens]), token, count, at);
    at += count;
  }
}

template <typename Item>
void GatherLayer(const KvStep& step, std::int64_t index, std::int64_t width,
                 const DenseLayer& out) {
  const KvShape& shape = step.arena().shape();
  const KvLayer layer = step.arena().layer(index);
  const KvAccess& access = step.access();
  const std::int64_t dim = shape.head_dim;
  for (std::int64_t s = 0; s < access.sequences; ++s) {
    const std::int64_t past = access.past[s];
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const std::int64_t row = (s * shape.kv_heads + h) * width;
      std::fill_n(out.keys + row * dim, (width - past) * dim, 0.0F);
      std::fill_n(out.values + row * dim, (width - past) * dim, 0.0F);
      const std::int64_t first = row + width - past;
      ForBlocks(access, s, 0, past,
                [&](std::size_t block, std::int64_t token, std::int64_t count, std::int64_t at) {
                  const std::size_t offset = block * layer.block_bytes;
                  const std::int64_t head = h * dim * kTokens;
                  ReadBlock(reinterpret_cast<const Item*>(layer.keys + offset) + head,
                            reinterpret_cast<const Item*>(layer.values + offset) + head, token,
                            count, dim, out.keys + (first + at) * dim,
                            out.values + (first + at) * dim);
                });
    }
  }
}

template <typename Item>
void ScatterLayer(const KvStep& step, std::int64_t index, std::int64_t width, std::int64_t rows,
                  const ConstDenseLayer& in) {
  const KvShape& shape = step.arena().shape();
  const KvLayer layer = step.arena().layer(index);
  const KvAccess& access = step.access();
  const std::int64_t dim = shape.head_dim;
  for (std::int64_t s = 0; s < access.sequences; ++s) {
    const std::int64_t past = access.past[s];
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const std::int64_t first = (s * shape.kv_heads + h) * (width + rows) + width;
      ForBlocks(access, s, past, past + rows,
                [&](std::size_t block, std::int64_t token, std::int64_t count, std::int64_t at) {
                  const std::size_t offset = block * layer.block_bytes;
                  const std::int64_t head = h * dim * kTokens;
                  const std::int64_t row = (first + at - past) * dim;
                  WriteBlock(in.keys + row, in.values + row, token, count, dim,
                             reinterpret_cast<Item*>(layer.keys + offset) + head,
                             reinterpret_cast<Item*>(layer.values + offset) + head);
                });
    }
  }
}

template <typename Work>
void ShareOut(std::int64_t items, int threads, Work work) {
  const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(items, 1));
  const auto run = [&](std::int64_t part) {
    for (std::int64_t i = part; i < items; i += parts) work(i);
  };
  std::vector<std::thread> others;
  for (std::int64_t part = 1; part < parts; ++part) others.emplace_back(run, part);
  run(0);
  for (std::thread& other : others) other.join();
}

void CheckLayers(const KvStep& step, std::int64_t width, std::size_t layers) {
  if (static_cast<std::int64_t>(layers) != step.arena().shape().layers) {
    throw InvalidInput("keys and values are of " + std::to_string(layers) +
                       " layers; the arena has " + std::to_string(step.arena().shape().layers));
  }
  const KvAccess& access = step.access();
  for (std::int64_t s = 0; s < access.sequences; ++s) {
    if (access.past[s] > width) {
      throw InvalidInput("sequence " + std::to_string(s) + " has " +
                         std::to_string(access.past[s]) + " tokens; the tensors have room for " +
                         std::to_string(width));
    }
  }
}

bool IsHalf(const KvStep& step) { return step.arena().shape().type == KvType::kFloat16; }

}  // namespace

void GatherPast(const KvStep& step, std::int64_t width, const std::vector<DenseLayer>& layers,
                int threads) {
  CheckLayers(step, width, layers.size());
  const auto gather = IsHalf(step) ? &GatherLayer<std::uint16_t> : &GatherLayer<float>;
  ShareOut(static_cast<std::int64_t>(layers.size()), threads,
           [&](std::int64_t i) { gather(step, i, width, layers[static_cast<std::size_t>(i)]); });
}

void ScatterRows(const KvStep& step, std::int64_t width, const std::vector<ConstDenseLayer>& layers,
                 int threads) {
  CheckLayers(step, width, layers.size());
  const KvAccess& access = step.access();
  const std::int64_t rows = access.offsets[1] - access.offsets[0];
  for (std::int64_t s = 1; s < access.sequences; ++s) {
    if (access.offsets[s + 1] - access.offsets[s] != rows) {
      throw InvalidInput("sequences of a dense step must have as many rows each");
    }
  }
  const auto scatter = IsHalf(step) ? &ScatterLayer<std::uint16_t> : &ScatterLayer<float>;
  ShareOut(static_cast<std::int64_t>(layers.size()), threads, [&](std::int64_t i) {
    scatter(step, i, width, rows, layers[static_cast<std::size_t>(i)]);
  });
}

}  // namespace orchid
