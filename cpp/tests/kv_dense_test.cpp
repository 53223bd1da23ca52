#include "orchid/kv_dense.h"

#include <vector>

#include "check.h"
#include "orchid/error.h"

namespace orchid {
namespace {

using test::Throws;
using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kLayers = 3;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 5;

std::shared_ptr<KvArena> Arena(KvType type) {
  KvShape shape;
  shape.layers = kLayers;
  shape.kv_heads = kHeads;
  shape.head_dim = kDim;
  shape.blocks = 6;
  shape.type = type;
  auto arena = KvArena::Make(shape);
  arena->Acquire({0, 1, 2, 3, 4, 5}, 1);
  return arena;
}

KvAccess Access(const Ints& offsets, const Ints& past, const Ints& table) {
  KvAccess access;
  access.offsets = offsets.data();
  access.past = past.data();
  access.table = table.data();
  access.sequences = static_cast<std::int64_t>(past.size());
  access.table_width = static_cast<std::int64_t>(table.size() / past.size());
  return access;
}

// A number that half precision holds and that is of no other place.
float Mark(std::int64_t layer, std::int64_t s, std::int64_t head, std::int64_t token,
           std::int64_t d) {
  return static_cast<float>((((layer * 2 + s) * kHeads + head) * 33 + token) * kDim + d) / 8.0F;
}

struct Tensors {
  explicit Tensors(std::int64_t tokens)
      : keys(static_cast<std::size_t>(kLayers),
             Floats(static_cast<std::size_t>(2 * kHeads * tokens * kDim), 7.0F)),
        values(keys) {}
  std::vector<Floats> keys;
  std::vector<Floats> values;

  std::vector<DenseLayer> layers() {
    std::vector<DenseLayer> found;
    for (std::size_t i = 0; i < keys.size(); ++i)
      found.push_back({keys[i].data(), values[i].data()});
    return found;
  }
  std::vector<ConstDenseLayer> constants() const {
    std::vector<ConstDenseLayer> found;
    for (std::size_t i = 0; i < keys.size(); ++i)
      found.push_back({keys[i].data(), values[i].data()});
    return found;
  }
};

template <typename Visit>
void ForAll(std::int64_t tokens, Visit visit) {
  for (std::int64_t l = 0; l < kLayers; ++l) {
    for (std::int64_t s = 0; s < 2; ++s) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t d = 0; d < kDim; ++d) {
            const auto at = static_cast<std::size_t>(((s * kHeads + h) * tokens + t) * kDim + d);
            visit(l, s, h, t, d, static_cast<std::size_t>(l), at);
          }
        }
      }
    }
  }
}

void RoundTrip(KvType type) {
  const auto arena = Arena(type);
  const Ints table{5, 0, 3, 1, 4, 2};
  constexpr std::int64_t kRows = 33;
  Tensors written(kRows);
  ForAll(kRows, [&](auto l, auto s, auto h, auto t, auto d, auto layer, auto at) {
    written.keys[layer][at] = Mark(l, s, h, t, d);
    written.values[layer][at] = -Mark(l, s, h, t, d);
  });
  {
    const Ints offsets{0, 33, 66};
    const Ints none{0, 0};
    KvStep step(arena, Access(offsets, none, table));
    ScatterRows(step, 0, written.constants(), 2);
    step.Commit();
  }
  const Ints one{0, 1, 2};
  const Ints past{31, 18};
  constexpr std::int64_t kWidth = 36;
  Tensors read(kWidth);
  KvStep step(arena, Access(one, past, table));
  GatherPast(step, kWidth, read.layers(), 2);
  bool right = true;
  ForAll(kWidth, [&](auto l, auto s, auto h, auto t, auto d, auto layer, auto at) {
    const std::int64_t token = t - (kWidth - past[static_cast<std::size_t>(s)]);
    const float expected = token < 0 ? 0.0F : Mark(l, s, h, token, d);
    right = right && read.keys[layer][at] == expected && read.values[layer][at] == -expected;
  });
  CHECK(right);
}

TEST(WhatIsScatteredIsGatheredInFloats) { RoundTrip(KvType::kFloat32); }

TEST(WhatIsScatteredIsGatheredInHalves) { RoundTrip(KvType::kFloat16); }

TEST(TensorsThatDoNotFitAreRefused) {
  const auto arena = Arena(KvType::kFloat32);
  const Ints table{0, 1, 2, 3};
  const Ints uneven{0, 1, 4};
  const Ints none{0, 0};
  {
    KvStep step(arena, Access(uneven, none, table));
    Tensors tensors(8);
    CHECK(Throws<InvalidInput>([&] { ScatterRows(step, 0, tensors.constants(), 1); }, "as many"));
    auto layers = tensors.layers();
    layers.pop_back();
    CHECK(Throws<InvalidInput>([&] { GatherPast(step, 8, layers, 1); }, "of 2 layers"));
    step.Commit();
  }
  const Ints past{1, 3};
  const Ints ones{0, 1, 2};
  KvStep step(arena, Access(ones, past, table));
  Tensors tensors(8);
  CHECK(Throws<InvalidInput>([&] { GatherPast(step, 2, tensors.layers(), 1); }, "has 3 tokens"));
}

}  // namespace
}  // namespace orchid
