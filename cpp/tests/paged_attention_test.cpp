#include "orchid/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "orchid/error.h"
#include "orchid/half.h"
#include "paged_kernels.h"

namespace orchid {
namespace {

using Floats = std::vector<float>;

struct Sizes {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t dim = 8;
  double theta = 0.0;
  KvType type = KvType::kFloat32;

  std::int64_t width() const { return (heads + 2 * kv_heads) * dim; }
};

// A sequence's projections for all its positions.
struct Text {
  Floats qkv;
  std::int64_t tokens;
};

Text MakeText(const Sizes& sizes, std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  Text text{Floats(static_cast<std::size_t>(tokens * sizes.width())), tokens};
  for (float& x : text.qkv) x = normal(random);
  return text;
}

// A model of one layer over an arena, that is fed pieces of texts.
class Lane {
 public:
  Lane(const Sizes& sizes, Simd simd, std::int64_t blocks, int threads = 1)
      : sizes_(sizes), simd_(simd), threads_(threads) {
    KvShape shape;
    shape.layers = 1;
    shape.kv_heads = sizes.kv_heads;
    shape.head_dim = sizes.dim;
    shape.blocks = blocks;
    shape.type = sizes.type;
    arena_ = KvArena::Make(shape);
    free_.resize(static_cast<std::size_t>(blocks));
    std::iota(free_.begin(), free_.end(), 0);
    // Scattered, so that a kernel that ignores the table is found out.
    std::shuffle(free_.begin(), free_.end(), std::mt19937(3));
    if (sizes.theta > 0.0) rope_ = RopeTable::Shared(sizes.theta, sizes.dim);
  }

  struct Piece {
    const Text* text;
    std::int64_t begin;
    std::int64_t end;
    std::vector<std::int32_t>* blocks;
  };

  // Runs the pieces in one step; returns each piece's output rows.
  std::vector<Floats> Step(const std::vector<Piece>& pieces, std::int64_t spare_rows = 0) {
    std::vector<std::int32_t> offsets{0};
    std::vector<std::int32_t> past;
    std::size_t table_width = 1;
    Floats qkv;
    for (const Piece& piece : pieces) {
      while (static_cast<std::int64_t>(piece.blocks->size()) * 16 < piece.end) {
        arena_->Acquire({free_.back()}, 0);
        piece.blocks->push_back(free_.back());
        free_.pop_back();
      }
      table_width = std::max(table_width, piece.blocks->size());
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(piece.end - piece.begin));
      past.push_back(static_cast<std::int32_t>(piece.begin));
      qkv.insert(qkv.end(), piece.text->qkv.begin() + piece.begin * sizes_.width(),
                 piece.text->qkv.begin() + piece.end * sizes_.width());
    }
    std::vector<std::int32_t> table;
    for (const Piece& piece : pieces) {
      table.insert(table.end(), piece.blocks->begin(), piece.blocks->end());
      table.resize(table.size() + table_width - piece.blocks->size(), -1);
    }
    const std::int64_t rows = offsets.back() + spare_rows;
    qkv.resize(static_cast<std::size_t>(rows * sizes_.width()), NAN);
    const std::int64_t out_width = sizes_.heads * sizes_.dim;
    Floats out(static_cast<std::size_t>(rows * out_width), NAN);
    KvAccess access;
    access.offsets = offsets.data();
    access.past = past.data();
    access.table = table.data();
    access.sequences = static_cast<std::int64_t>(pieces.size());
    access.table_width = static_cast<std::int64_t>(table_width);
    KvStep step(arena_, access);
    PagedArgs args;
    args.qkv = qkv.data();
    args.rows = rows;
    args.access = step.access();
    args.heads = sizes_.heads;
    args.kv_heads = sizes_.kv_heads;
    args.head_dim = sizes_.dim;
    args.scale = 1.0F / std::sqrt(static_cast<float>(sizes_.dim));
    if (rope_ != nullptr) {
      rope_->Ensure(5000);
      args.rope = rope_.get();
    }
    args.layer = arena_->layer(0);
    args.out = out.data();
    Run(PagedPlan(args, simd_));
    step.Commit();
    std::vector<Floats> results;
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      results.emplace_back(out.begin() + offsets[s] * out_width,
                           out.begin() + offsets[s + 1] * out_width);
    }
    CHECK(std::all_of(out.begin() + offsets.back() * out_width, out.end(),
                      [](float x) { return x == 0.0F; }));
    return results;
  }

  // A whole text alone, cut into pieces of `chunk` tokens.
  Floats Alone(const Text& text, std::int64_t chunk) {
    Floats all;
    std::vector<std::int32_t> blocks;
    for (std::int64_t i = 0; i < text.tokens; i += chunk) {
      const Floats part = Step({{&text, i, std::min(i + chunk, text.tokens), &blocks}})[0];
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  void Run(const PagedPlan& plan) const {
    if (threads_ == 1) return plan.RunAll();
    for (std::int64_t i = plan.writes() - 1; i >= 0; --i) plan.Write(i);
    std::vector<std::thread> threads;
    for (std::int64_t t = 0; t < threads_; ++t) {
      threads.emplace_back([this, &plan, t] {
        for (std::int64_t i = plan.items() - 1 - t; i >= 0; i -= threads_) plan.Attend(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Sizes sizes_;
  Simd simd_;
  int threads_;
  std::shared_ptr<KvArena> arena_;
  std::vector<std::int32_t> free_;
  std::shared_ptr<RopeTable> rope_;
};

// The definition, in double precision.
std::vector<double> Reference(const Sizes& z, const Text& text) {
  const auto rotated = [&](std::int64_t p, std::int64_t slice) {
    const float* x = text.qkv.data() + p * z.width() + slice * z.dim;
    std::vector<double> out(x, x + z.dim);
    if (z.theta == 0.0) return out;
    for (std::int64_t i = 0; i < z.dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(z.theta, -2.0 * static_cast<double>(i) / static_cast<double>(z.dim));
      const auto lo = static_cast<std::size_t>(i);
      const auto hi = static_cast<std::size_t>(i + z.dim / 2);
      const double a = out[lo];
      const double b = out[hi];
      out[lo] = a * std::cos(angle) - b * std::sin(angle);
      out[hi] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  };
  std::vector<double> out;
  for (std::int64_t p = 0; p < text.tokens; ++p) {
    for (std::int64_t h = 0; h < z.heads; ++h) {
      const std::int64_t g = h / (z.heads / z.kv_heads);
      const std::vector<double> q = rotated(p, h);
      std::vector<double> weights;
      for (std::int64_t j = 0; j <= p; ++j) {
        const std::vector<double> k = rotated(j, z.heads + g);
        weights.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) /
                          std::sqrt(static_cast<double>(z.dim)));
      }
      const double peak = *std::max_element(weights.begin(), weights.end());
      double total = 0.0;
      for (double& w : weights) total += (w = std::exp(w - peak));
      for (std::int64_t d = 0; d < z.dim; ++d) {
        double mixed = 0.0;
        for (std::int64_t j = 0; j <= p; ++j) {
          mixed += weights[static_cast<std::size_t>(j)] *
                   text.qkv[static_cast<std::size_t>(j * z.width() +
                                                     (z.heads + z.kv_heads + g) * z.dim + d)];
        }
        out.push_back(mixed / total);
      }
    }
  }
  return out;
}

double Distance(const Floats& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::isnan(a[i]) ? INFINITY : std::fabs(a[i] - b[i]));
  }
  return worst;
}

bool Same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<Simd> Levels() {
  std::vector<Simd> levels{Simd::kPortable};
  for (const Simd level : {Simd::kAvx2, Simd::kAvx512}) {
    if (DetectSimd() >= level) levels.push_back(level);
  }
  return levels;
}

TEST(PagedAttentionMatchesItsDefinition) {
  const Sizes shapes[] = {
      {1, 1, 8, 0.0},      {9, 3, 64, 100000.0}, {2, 2, 24, 0.0}, {4, 1, 16, 10000.0},
      {6, 2, 10, 10000.0}, {64, 1, 8, 500.0},    {2, 1, 40, 0.0}, {12, 12, 8, 0.0},
  };
  for (Sizes sizes : shapes) {
    for (const std::int64_t tokens : {1, 15, 16, 17, 130, 530}) {
      if (sizes.heads > 9 && tokens > 130) continue;
      const Text text = MakeText(sizes, tokens, 5);
      const std::vector<double> expected = Reference(sizes, text);
      for (const Simd level : Levels()) {
        sizes.type = KvType::kFloat32;
        CHECK(Distance(Lane(sizes, level, 40).Alone(text, tokens), expected) < 4e-6);
        sizes.type = KvType::kFloat16;
        CHECK(Distance(Lane(sizes, level, 40).Alone(text, tokens), expected) < 6e-3);
      }
    }
  }
}

TEST(AnyChunkingGivesTheSameBits) {
  for (const KvType type : {KvType::kFloat16, KvType::kFloat32}) {
    for (const Sizes& sizes : {Sizes{9, 3, 64, 100000.0, type}, Sizes{2, 2, 8, 0.0, type}}) {
      for (const Simd level : Levels()) {
        // The portable kernel is slow, above all under sanitizers.
        const Text text = MakeText(sizes, level == Simd::kPortable ? 530 : 1100, 9);
        const Floats whole = Lane(sizes, level, 80).Alone(text, text.tokens);
        for (const std::int64_t chunk : {1, 7, 64, 333}) {
          if (level == Simd::kPortable && chunk < 64) continue;
          CHECK(Same(Lane(sizes, level, 80).Alone(text, chunk), whole));
        }
      }
    }
  }
}

TEST(ASequenceIsTheSameBitsInAnyStepAndOnAnyThreads) {
  for (const KvType type : {KvType::kFloat16, KvType::kFloat32}) {
    const Sizes sizes{6, 2, 32, 10000.0, type};
    const Text texts[] = {MakeText(sizes, 700, 1), MakeText(sizes, 33, 2), MakeText(sizes, 16, 3)};
    for (const Simd level : Levels()) {
      Lane lane(sizes, level, 64, 3);
      std::vector<std::int32_t> blocks[3];
      const auto a = lane.Step({{&texts[0], 0, 650, &blocks[0]}});
      const auto b = lane.Step({{&texts[1], 0, 20, &blocks[1]}, {&texts[0], 650, 651, &blocks[0]}});
      const auto c = lane.Step({{&texts[0], 651, 700, &blocks[0]},
                                {&texts[2], 0, 16, &blocks[2]},
                                {&texts[1], 20, 33, &blocks[1]}},
                               2);
      const auto joined = [](std::initializer_list<Floats> parts) {
        Floats all;
        for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
        return all;
      };
      CHECK(Same(joined({a[0], b[1], c[0]}), Lane(sizes, level, 64).Alone(texts[0], 700)));
      CHECK(Same(joined({b[0], c[2]}), Lane(sizes, level, 64).Alone(texts[1], 33)));
      CHECK(Same(c[1], Lane(sizes, level, 64).Alone(texts[2], 16)));
    }
  }
}

TEST(ValuesBeyondHalfPrecisionSaturate) {
  const Sizes sizes{1, 1, 8, 0.0, KvType::kFloat16};
  Text text = MakeText(sizes, 3, 4);
  for (std::int64_t i = 8; i < 24; ++i)
    text.qkv[static_cast<std::size_t>(i)] = i % 2 ? 1e9F : -1e9F;
  for (std::int64_t i = 0; i < 8; ++i) text.qkv[static_cast<std::size_t>(i)] = 0.0F;
  for (const Simd level : Levels()) {
    const Floats out = Lane(sizes, level, 1).Alone(text, 3);
    CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
    CHECK(std::fabs(out[0]) == 65504.0F);
  }
}

TEST(LargeScoresDoNotOverflowPaged) {
  const Sizes sizes{2, 1, 16, 0.0, KvType::kFloat32};
  Text text = MakeText(sizes, 600, 8);
  for (float& x : text.qkv) x *= 10.0F;
  const std::vector<double> expected = Reference(sizes, text);
  for (const Simd level : Levels()) {
    CHECK(Distance(Lane(sizes, level, 40).Alone(text, 600), expected) < 4e-3);
  }
}

TEST(HalfPrecisionRoundsLikeTheHardware) {
#if defined(ORCHID_X86_KERNELS)
  if (!HasF16c() || DetectSimd() < Simd::kAvx2) return;
  const auto narrowed = [](const PagedKernels& kernels, const Floats& values) {
    std::vector<std::uint16_t> keys(values.size() * 16);
    std::vector<std::uint16_t> stored(values.size() * 16);
    kernels.store(values.data(), values.data(), static_cast<std::int64_t>(values.size()), 0,
                  KvType::kFloat16, keys.data(), stored.data());
    stored.resize(values.size());
    return stored;
  };
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    Floats values(64);
    for (float& x : values) {
      // Every exponent, and mantissas on and around the ties.
      std::uint32_t bits = static_cast<std::uint32_t>(random());
      if (round % 2 == 0) bits = (bits & 0xFFFFE000U) | 0x1000U;
      if (round % 4 == 1) bits = (bits & 0x807FFFFFU) | ((100U + bits % 40U) << 23);
      std::memcpy(&x, &bits, sizeof x);
      if (std::isnan(x)) x = 1.0F;
    }
    CHECK(narrowed(PortablePagedKernels(), values) == narrowed(Avx2PagedKernels(), values));
  }
#endif
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = FloatFromHalf(half);
    if (!std::isnan(wide)) CHECK(HalfFromFloat(wide) == half);
  }
  CHECK(HalfFromFloat(65520.0F) == 0x7C00 && HalfFromFloat(65519.0F) == 0x7BFF);
  CHECK(HalfFromFloat(std::ldexp(1.0F, -25)) == 0 && HalfFromFloat(std::ldexp(1.5F, -25)) == 1);
}

TEST(RopeRefusesWhatItCannotRotate) {
  CHECK(test::Throws<InvalidInput>([] { RopeTable(10000.0, 7); }, "an even size"));
  CHECK(test::Throws<InvalidInput>([] { RopeTable(0.5, 8); }, "theta > 1"));
  const auto table = RopeTable::Shared(10000.0, 8);
  CHECK(table == RopeTable::Shared(10000.0, 8));
  CHECK(
      test::Throws<InvalidInput>([&] { table->Ensure(RopeTable::kMaxPositions + 1); }, "too far"));
  table->Ensure(RopeTable::kMaxPositions / 512);
  CHECK(table->Row(0)[0] == 1.0F && table->Row(0)[4] == 0.0F);
  CHECK(std::fabs(table->Row(300)[4] - std::sin(300.0)) < 1e-7);
}

TEST(SwiGluMatchesItsDefinition) {
  for (const std::int64_t width : {1, 7, 8, 29}) {
    Floats x(static_cast<std::size_t>(4 * width));
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0F, 8.0F);
    for (float& value : x) value = normal(random);
    x[0] = 300.0F;
    x[static_cast<std::size_t>(2 * width)] = -300.0F;
    for (const Simd level : Levels()) {
      Floats out(static_cast<std::size_t>(2 * width));
      SwiGlu(x.data(), 2, width, out.data(), level);
      for (std::int64_t i = 0; i < 2 * width; ++i) {
        const auto gate = static_cast<std::size_t>(i / width * 2 * width + i % width);
        const double expected = x[gate] / (1.0 + std::exp(-static_cast<double>(x[gate]))) *
                                x[gate + static_cast<std::size_t>(width)];
        CHECK(std::fabs(out[static_cast<std::size_t>(i)] - expected) <=
              1e-6 * (1.0 + std::fabs(expected)));
      }
    }
  }
}

}  // namespace
}  // namespace orchid
