#include "orchid/kv_arena.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "orchid/error.h"

namespace orchid {
namespace {

using test::Throws;
using Blocks = std::vector<std::int32_t>;

std::shared_ptr<KvArena> Arena(std::int64_t blocks, KvType type = KvType::kFloat32) {
  KvShape shape;
  shape.layers = 2;
  shape.kv_heads = 1;
  shape.head_dim = 8;
  shape.blocks = blocks;
  shape.type = type;
  return KvArena::Make(shape);
}

// A step of one sequence, or of several with equal table widths.
struct Plan {
  Blocks offsets;
  Blocks past;
  Blocks table;

  KvAccess access() const {
    KvAccess a;
    a.offsets = offsets.data();
    a.past = past.data();
    a.table = table.data();
    a.sequences = static_cast<std::int64_t>(past.size());
    a.table_width = static_cast<std::int64_t>(table.size()) / a.sequences;
    return a;
  }
};

void Write(const std::shared_ptr<KvArena>& arena, const Plan& plan) {
  KvStep step(arena, plan.access());
  step.Commit();
}

bool Refused(const std::shared_ptr<KvArena>& arena, const Plan& plan, const char* why) {
  const std::vector<std::int32_t> before = arena->filled();
  const bool refused = Throws<InvalidInput>([&] { KvStep(arena, plan.access()); }, why);
  return refused && arena->filled() == before;
}

unsigned char* At(const KvArena& arena, std::int64_t layer, std::int32_t block) {
  const KvLayer where = arena.layer(layer);
  return where.keys + static_cast<std::size_t>(block) * where.block_bytes;
}

TEST(ShapesWithoutSenseAreRefused) {
  KvShape shape;
  shape.layers = shape.kv_heads = shape.head_dim = 1;
  CHECK(Throws<InvalidInput>([&] { KvArena::Make(shape); }, "blocks is 0"));
  shape.blocks = shape.layers = shape.kv_heads = shape.head_dim = 1 << 20;
  CHECK(Throws<EngineFault>([&] { KvArena::Make(shape); }, "out of memory"));
}

TEST(LayersAndBlocksDoNotOverlap) {
  const auto arena = Arena(3, KvType::kFloat16);
  const KvLayer first = arena->layer(0);
  CHECK(first.block_bytes == 2 * 16 * 8 * 2);
  CHECK(first.values == first.keys + 16 * 8 * 2);
  CHECK(arena->layer(1).keys == first.keys + 3 * first.block_bytes);
  CHECK(arena->stats().bytes == 2 * 3 * first.block_bytes);
  CHECK(reinterpret_cast<std::uintptr_t>(first.keys) % 64 == 0);
}

TEST(ChangesAreCheckedWholeBeforeAnythingChanges) {
  const auto arena = Arena(4);
  arena->Acquire({1, 2}, 7);
  const auto unchanged = [&] { return arena->references() == Blocks{0, 1, 1, 0}; };
  CHECK(Throws<InvalidInput>([&] { arena->Acquire({0, 2}, 7); }, "block 2 is not free"));
  CHECK(Throws<InvalidInput>([&] { arena->Acquire({0, 4}, 7); }, "block 4 does not exist"));
  CHECK(Throws<InvalidInput>([&] { arena->Acquire({0, -1}, 7); }, "block -1 does not exist"));
  CHECK(Throws<InvalidInput>([&] { arena->Acquire({0, 3, 0}, 7); }, "asked for twice"));
  CHECK(Throws<InvalidInput>([&] { arena->Retain({1, 0}); }, "block 0 is free"));
  CHECK(Throws<InvalidInput>([&] { arena->Release({1, 3}); }, "block 3 is free"));
  CHECK(Throws<InvalidInput>([&] { arena->Release({1, 2, 1}); }, "more often than it is held"));
  CHECK(unchanged());
  arena->Retain({1});
  arena->Release({1, 2, 1});
  CHECK((arena->references() == Blocks{0, 0, 0, 0}));
}

TEST(AnotherOwnerGetsZeroedBlocks) {
  const auto arena = Arena(2);
  arena->Acquire({0, 1}, 1);
  for (const std::int64_t layer : {0, 1}) {
    std::memset(At(*arena, layer, 0), 0x55, arena->layer(0).block_bytes);
    std::memset(At(*arena, layer, 1), 0x55, arena->layer(0).block_bytes);
  }
  arena->Release({0, 1});
  arena->Acquire({0}, 1);
  CHECK(At(*arena, 0, 0)[0] == 0x55);
  CHECK(arena->stats().zeroed == 0);
  arena->Release({0});
  arena->Acquire({0}, 2);
  for (const std::int64_t layer : {0, 1}) {
    const unsigned char* block = At(*arena, layer, 0);
    CHECK(std::all_of(block, block + arena->layer(0).block_bytes, [](int x) { return x == 0; }));
    CHECK(At(*arena, layer, 1)[0] == 0x55);
  }
  CHECK(arena->stats().zeroed == 1);
}

TEST(CopiesStayWithOneOwner) {
  const auto arena = Arena(3);
  arena->Acquire({0, 1}, 1);
  arena->Acquire({2}, 2);
  Write(arena, {{0, 5}, {0}, {0}});
  std::memset(At(*arena, 1, 0), 0x11, arena->layer(0).block_bytes);
  arena->Copy(0, 1);
  CHECK(At(*arena, 1, 1)[17] == 0x11);
  CHECK((arena->filled() == Blocks{5, 5, 0}));
  CHECK(Throws<InvalidInput>([&] { arena->Copy(0, 2); }, "different owners"));
  CHECK(Throws<InvalidInput>([&] { arena->Copy(0, 0); }, "cannot be written"));
  arena->Retain({1});
  CHECK(Throws<InvalidInput>([&] { arena->Copy(0, 1); }, "2 references"));
}

TEST(AStepIsCheckedBeforeItOpens) {
  const auto arena = Arena(6);
  arena->Acquire({0, 1, 2, 3}, 1);
  CHECK(Refused(arena, {{0, 0}, {0}, {0}}, "strictly increasing"));
  CHECK(Refused(arena, {{0, 1}, {-1}, {0}}, "past length -1"));
  CHECK(Refused(arena, {{0, 17}, {0}, {0}}, "has 17 tokens; its block table holds 16"));
  CHECK(Refused(arena, {{0, 17}, {0}, {0, 4}}, "block 4 is free"));
  CHECK(Refused(arena, {{0, 17}, {0}, {0, 9}}, "block 9 does not exist"));
  CHECK(Refused(arena, {{0, 1}, {3}, {0}}, "hold no token"));
  CHECK(Refused(arena, {{0, 1, 2}, {0, 0}, {1, 1}}, "which sequence 0 writes too"));
  CHECK(Refused(arena, {{0, 17}, {0}, {1, 1}}, "which sequence 0 writes too"));
  Write(arena, {{0, 16}, {0}, {0}});
  CHECK(Refused(arena, {{0, 1, 2}, {16, 0}, {0, 1, 0, 2}}, "which sequence 1 writes"));
  arena->Retain({2});
  CHECK(Refused(arena, {{0, 1}, {0}, {2}}, "which has 2 references"));
  Write(arena, {{0, 1, 2}, {16, 16}, {0, 1, 0, 3}});
  CHECK((arena->filled() == Blocks{16, 1, 0, 1, 0, 0}));
}

TEST(OnlyCommittedTokensCount) {
  const auto arena = Arena(3);
  arena->Acquire({0, 1}, 1);
  Write(arena, {{0, 20}, {0}, {0, 1}});
  CHECK((arena->filled() == Blocks{16, 4, 0}));
  CHECK(arena->stats().used == 2 && arena->stats().filled == 20);
  CHECK(arena->stats().fragmentation() == 1.0 - 20.0 / 32.0);
  CHECK(arena->stats().occupancy() == 2.0 / 3.0);
  {
    const KvStep lost(arena, Plan{{0, 3}, {15}, {0, 1}}.access());
  }
  CHECK((arena->filled() == Blocks{15, 0, 0}));
  Write(arena, {{0, 3}, {15}, {0, 1}});
  CHECK((arena->filled() == Blocks{16, 2, 0}));
  arena->Release({0, 1});
  CHECK((arena->filled() == Blocks{0, 0, 0}));
}

TEST(OneStepAtATimeAndNoChangesMeanwhile) {
  const auto arena = Arena(2);
  arena->Acquire({0}, 1);
  const Plan plan{{0, 1}, {0}, {0}};
  std::int64_t ticket = 0;
  {
    const KvStep step(arena, plan.access());
    ticket = step.ticket();
    CHECK(KvStep::Find(ticket) == &step);
    CHECK(Throws<InvalidInput>([&] { KvStep(arena, plan.access()); }, "in a step"));
    CHECK(Throws<InvalidInput>([&] { arena->Acquire({1}, 1); }, "in a step"));
    CHECK(Throws<InvalidInput>([&] { arena->Retain({0}); }, "in a step"));
    CHECK(Throws<InvalidInput>([&] { arena->Release({0}); }, "in a step"));
  }
  CHECK(KvStep::Find(ticket) == nullptr);
  const KvStep next(arena, plan.access());
  CHECK(next.ticket() != ticket);
}

// Random operations against a plain model of what they should do.
TEST(RandomOperationsKeepEveryInvariant) {
  constexpr std::int32_t kBlocks = 64;
  const auto arena = Arena(kBlocks);
  std::mt19937 random(7);
  Blocks references(kBlocks, 0);
  Blocks filled(kBlocks, 0);
  const auto pick = [&](int n) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(n));
  };
  for (int i = 0; i < 200000; ++i) {
    Blocks some(static_cast<std::size_t>(1 + pick(3)));
    for (std::int32_t& block : some) block = pick(kBlocks + 1);
    Blocks expected = references;
    Blocks kept = filled;
    bool fits = true;
    const int kind = pick(4);
    for (const std::int32_t block : some) {
      if (block >= kBlocks) {
        fits = false;
        break;
      }
      const auto at = static_cast<std::size_t>(block);
      if (kind == 0) fits = fits && expected[at]++ == 0;
      if (kind == 1) fits = fits && references[at] > 0 && expected[at]++ > 0;
      if (kind == 2) fits = fits && --expected[at] >= 0;
      if (kind == 2 && fits && expected[at] == 0) kept[at] = 0;
    }
    if (kind == 3) {  // a step of the first block alone, from what it holds
      const auto at = static_cast<std::size_t>(some[0]);
      fits = some[0] < kBlocks && references[at] == 1 && filled[at] < 16;
      Plan plan{{0, 1}, {some[0] < kBlocks ? std::min(filled[at], 15) : 0}, {some[0]}};
      bool opened = true;
      try {
        KvStep step(arena, plan.access());
        step.Commit();
      } catch (const InvalidInput&) {
        opened = false;
      }
      const bool rewrites = some[0] < kBlocks && references[at] == 1 && filled[at] == 16;
      CHECK(opened == (fits || rewrites));
      if (opened) filled[at] = plan.past[0] + 1;
      continue;
    }
    bool done = true;
    try {
      if (kind == 0) arena->Acquire(some, pick(3));
      if (kind == 1) arena->Retain(some);
      if (kind == 2) arena->Release(some);
    } catch (const InvalidInput&) {
      done = false;
    }
    CHECK(done == fits);
    if (done) {
      references = expected;
      filled = kept;
    }
    if (i % 1000 == 0) {
      CHECK(arena->references() == references);
      CHECK(arena->filled() == filled);
    }
  }
  CHECK(arena->references() == references);
  CHECK(arena->filled() == filled);
  const KvStats stats = arena->stats();
  CHECK(stats.used == kBlocks - std::count(references.begin(), references.end(), 0));
}

}  // namespace
}  // namespace orchid
