#include "orchid/decoder_layer.h"

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "orchid/error.h"
#include "orchid/half.h"
#include "orchid/kv_arena.h"

namespace orchid {
namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kDim = 32;
constexpr std::int64_t kHidden = 96;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kPacked = (kHeads + 2 * kKvHeads) * kDim;

std::vector<Simd> Levels() {
  std::vector<Simd> levels{Simd::kPortable};
  for (const Simd level : {Simd::kAvx2, Simd::kAvx512}) {
    if (DetectSimd() >= level) levels.push_back(level);
  }
  return levels;
}

Floats Random(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  Floats values(static_cast<std::size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

// Blocks of any bytes with small scales.
struct Matrix {
  std::vector<std::uint8_t> bytes;
  BlockWeights view;

  Matrix(BlockForm form, std::int64_t inputs, std::int64_t outputs, unsigned seed) {
    view.form = form;
    view.groups = outputs / kGroupOutputs;
    view.blocks = inputs / kBlockInputs;
    bytes.resize(static_cast<std::size_t>(view.groups * view.blocks * GroupBytes(form)));
    std::mt19937 random(seed);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    const std::int64_t halves = (form == BlockForm::kFourBits ? 2 : 1) * kGroupOutputs;
    for (std::int64_t b = 0; b < view.groups * view.blocks; ++b) {
      for (std::int64_t i = 0; i < halves; ++i) {
        const float scale = static_cast<float>(random() % 100) * 1e-4F - 5e-3F;
        const std::uint16_t half = HalfFromFloat(scale);
        std::memcpy(bytes.data() + b * GroupBytes(form) + 2 * i, &half, 2);
      }
    }
    view.data = bytes.data();
  }
};

struct Layer {
  Matrix qkv{BlockForm::kFourBits, kHidden, kPacked, 1};
  Matrix attended{BlockForm::kEightBits, kHeads * kDim, kHidden, 2};
  Matrix up{BlockForm::kFourBits, kHidden, 2 * kWidth, 3};
  Matrix down{BlockForm::kFourBits, kWidth, kHidden, 4};
  Floats attention_norm = Random(kHidden, 5);
  Floats mlp_norm = Random(kHidden, 6);

  DecoderLayerWeights Weights() const {
    return {{attention_norm.data(), 1e-5F}, qkv.view, attended.view,
            {mlp_norm.data(), 1e-5F},       up.view,  down.view};
  }
};

// Sequences of a step, each with blocks of its own.
struct Step {
  std::shared_ptr<KvArena> arena = KvArena::Make(KvShape{1, kKvHeads, kDim, 32, KvType::kFloat16});
  std::vector<std::int32_t> offsets{0};
  std::vector<std::int32_t> past;
  std::vector<std::int32_t> table;

  explicit Step(const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> blocks;
    for (const std::int32_t length : lengths) {
      offsets.push_back(offsets.back() + length);
      past.push_back(0);
      for (int i = 0; i < 3; ++i) blocks.push_back(static_cast<std::int32_t>(blocks.size()));
    }
    table = blocks;
    arena->Acquire(blocks, 1);
  }

  Floats Run(const Layer& layer, const Floats& x, int threads, Simd simd) {
    KvAccess access;
    access.sequences = static_cast<std::int64_t>(past.size());
    access.offsets = offsets.data();
    access.past = past.data();
    access.table = table.data();
    access.table_width = 3;
    KvStep step(arena, access);
    PagedArgs attention;
    attention.rows = offsets.back();
    attention.access = step.access();
    attention.heads = kHeads;
    attention.kv_heads = kKvHeads;
    attention.head_dim = kDim;
    attention.scale = 0.2F;
    attention.layer = arena->layer(0);
    Floats out(x.size());
    DecoderLayerScratch scratch;
    DecoderLayerRun run(layer.Weights(), attention, x.data(), out.data(), scratch, simd);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { run.rounds().Participate(); });
    run.rounds().Participate();
    for (std::thread& other : others) other.join();
    run.rounds().Check();
    CHECK(run.AttentionNs() >= 0);
    step.Commit();
    return out;
  }
};

// One product by itself.
Floats Product(const BlockWeights& weights, const Floats& x, const RowNorm& norm, Epilogue epilogue,
               const Floats& add, Simd simd) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / (weights.blocks * kBlockInputs);
  const std::int64_t columns =
      weights.groups * kGroupOutputs / (epilogue == Epilogue::kSwiGlu ? 2 : 1);
  Floats out(static_cast<std::size_t>(rows * columns));
  QuantizedRows storage;
  Rounds rounds;
  AddProductRounds(rounds, storage, rows, x.data(), norm,
                   {weights, nullptr, epilogue, add.data(), out.data(), columns}, simd);
  rounds.Participate();
  return out;
}

TEST(ALayerIsItsPartsOneAfterTheOther) {
  const Layer layer;
  const DecoderLayerWeights weights = layer.Weights();
  const std::vector<std::int32_t> lengths{19, 1, 20};
  const Floats x = Random(40 * kHidden, 7);
  for (const Simd level : Levels()) {
    Step step(lengths);
    const Floats out = step.Run(layer, x, 1, level);
    const Floats packed =
        Product(weights.qkv, x, weights.attention_norm, Epilogue::kNone, {}, level);
    Step again(lengths);
    Floats attended(static_cast<std::size_t>(40 * kHeads * kDim));
    {
      KvAccess access;
      access.sequences = 3;
      access.offsets = again.offsets.data();
      access.past = again.past.data();
      access.table = again.table.data();
      access.table_width = 3;
      const KvStep open(again.arena, access);
      PagedArgs args;
      args.qkv = packed.data();
      args.rows = 40;
      args.access = open.access();
      args.heads = kHeads;
      args.kv_heads = kKvHeads;
      args.head_dim = kDim;
      args.scale = 0.2F;
      args.layer = again.arena->layer(0);
      args.out = attended.data();
      PagedPlan(args, level).RunAll();
    }
    const Floats middle = Product(weights.attended, attended, {}, Epilogue::kAdd, x, level);
    const Floats active =
        Product(weights.up, middle, weights.mlp_norm, Epilogue::kSwiGlu, {}, level);
    CHECK(out == Product(weights.down, active, {}, Epilogue::kAdd, middle, level));
  }
}

TEST(ARowOfALayerIsTheSameBitsInAnyCompanyAndOnAnyThreads) {
  const Layer layer;
  const Floats x = Random(31 * kHidden, 8);
  for (const Simd level : Levels()) {
    Step together({20, 1, 10});
    const Floats all = together.Run(layer, x, 1, level);
    Step threaded({20, 1, 10});
    CHECK(threaded.Run(layer, x, 3, level) == all);
    std::int64_t row = 0;
    for (const std::int32_t length : {20, 1, 10}) {
      Step alone({length});
      const Floats own(x.begin() + row * kHidden, x.begin() + (row + length) * kHidden);
      CHECK(alone.Run(layer, own, 2, level) ==
            Floats(all.begin() + row * kHidden, all.begin() + (row + length) * kHidden));
      row += length;
    }
  }
}

TEST(MatricesThatDoNotFitTogetherAreRefused) {
  const Layer layer;
  DecoderLayerWeights weights = layer.Weights();
  weights.Check(kHidden, kPacked, kHeads * kDim);
  weights.attended = weights.qkv;
  CHECK(test::Throws<InvalidInput>([&] { weights.Check(kHidden, kPacked, kHeads * kDim); },
                                   "attended takes 96 inputs and gives 256"));
}

}  // namespace
}  // namespace orchid
