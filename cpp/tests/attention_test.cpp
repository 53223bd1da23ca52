#include "orchid/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace orchid {
namespace {

struct Problem {
  std::vector<std::int32_t> offsets;
  std::int64_t heads;
  std::int64_t dim;
  std::int64_t reach;  // 0 for no bias
  std::vector<float> qkv;
  std::vector<float> bias;

  std::int64_t rows() const { return offsets.back(); }
};

Problem Make(const std::vector<int>& lengths, std::int64_t heads, std::int64_t dim,
             std::int64_t reach, unsigned seed = 1) {
  Problem p{{0}, heads, dim, reach, {}, {}};
  for (const int length : lengths) p.offsets.push_back(p.offsets.back() + length);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  p.qkv.resize(static_cast<std::size_t>(p.rows() * 3 * heads * dim));
  for (float& x : p.qkv) x = normal(random);
  if (reach > 0) p.bias.resize(static_cast<std::size_t>(heads * (2 * reach - 1)));
  for (float& x : p.bias) x = normal(random);
  return p;
}

AttentionArgs Args(const Problem& p, std::vector<float>& out) {
  out.assign(static_cast<std::size_t>(p.rows() * p.heads * p.dim), -1.0F);
  AttentionArgs args;
  args.qkv = p.qkv.data();
  args.offsets = p.offsets.data();
  args.sequences = static_cast<std::int64_t>(p.offsets.size()) - 1;
  args.heads = p.heads;
  args.head_dim = p.dim;
  args.scale = 1.0F / std::sqrt(static_cast<float>(p.dim));
  args.bias = p.bias.empty() ? nullptr : p.bias.data();
  args.bias_reach = p.reach;
  args.out = out.data();
  return args;
}

std::vector<float> Run(const Problem& p, Simd simd) {
  std::vector<float> out;
  AttentionPlan(Args(p, out), simd).RunAll();
  return out;
}

// The definition, in double precision.
std::vector<double> Reference(const Problem& p) {
  const std::int64_t width = p.heads * p.dim;
  std::vector<double> out(static_cast<std::size_t>(p.rows() * width));
  const auto at = [&](std::int64_t row, std::int64_t part, std::int64_t h, std::int64_t d) {
    return static_cast<double>(
        p.qkv[static_cast<std::size_t>(row * 3 * width + part * width + h * p.dim + d)]);
  };
  for (std::size_t s = 0; s + 1 < p.offsets.size(); ++s) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = p.offsets[s]; i < p.offsets[s + 1]; ++i) {
        std::vector<double> weights;
        double peak = -INFINITY;
        for (std::int64_t j = p.offsets[s]; j < p.offsets[s + 1]; ++j) {
          double score = 0.0;
          for (std::int64_t d = 0; d < p.dim; ++d) score += at(i, 0, h, d) * at(j, 1, h, d);
          score /= std::sqrt(static_cast<double>(p.dim));
          if (p.reach > 0) {
            const std::int64_t far = p.reach - 1;
            const std::int64_t column = std::clamp(j - i, -far, far) + far;
            score += p.bias[static_cast<std::size_t>(h * (2 * p.reach - 1) + column)];
          }
          weights.push_back(score);
          peak = std::max(peak, score);
        }
        double total = 0.0;
        for (double& w : weights) total += (w = std::exp(w - peak));
        for (std::int64_t d = 0; d < p.dim; ++d) {
          double mixed = 0.0;
          for (std::size_t j = 0; j < weights.size(); ++j) {
            mixed += weights[j] * at(p.offsets[s] + static_cast<std::int64_t>(j), 2, h, d);
          }
          out[static_cast<std::size_t>(i * width + h * p.dim + d)] = mixed / total;
        }
      }
    }
  }
  return out;
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

std::vector<Simd> Levels() {
  std::vector<Simd> levels{Simd::kPortable};
  if (DetectSimd() >= Simd::kAvx2) levels.push_back(Simd::kAvx2);
  return levels;
}

bool Same(const float* a, const float* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

TEST(AttentionMatchesItsDefinition) {
  const struct {
    std::vector<int> lengths;
    std::int64_t heads, dim, reach;
  } shapes[] = {
      {{1}, 1, 8, 0},
      {{5, 1, 17}, 2, 16, 0},
      {{7, 300}, 2, 24, 0},
      {{241, 2}, 1, 64, 0},
      {{257, 256, 255}, 1, 32, 0},
      {{600}, 1, 40, 0},
      {{33, 70}, 3, 64, 512},
      {{33, 70}, 3, 64, 20},
      {{300}, 2, 8, 100},
      {{513}, 1, 256, 513},
      {{9}, 2, 13, 4},
      {{20, 30}, 1, 264, 0},
      {{3}, 1, 1, 1},
  };
  for (const auto& shape : shapes) {
    const Problem p = Make(shape.lengths, shape.heads, shape.dim, shape.reach);
    const std::vector<double> expected = Reference(p);
    for (const Simd level : Levels()) CHECK(Distance(Run(p, level), expected) < 2e-6);
  }
}

TEST(ASequenceIsTheSameBitsInAnyCompany) {
  const std::vector<int> lengths{31, 1, 300, 16, 257};
  const Problem all = Make(lengths, 2, 32, 64);
  for (const Simd level : Levels()) {
    const std::vector<float> together = Run(all, level);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      Problem alone = all;
      const auto row = static_cast<std::size_t>(all.offsets[s]);
      const auto count = static_cast<std::size_t>(lengths[s]);
      alone.offsets = {0, lengths[s]};
      alone.qkv.assign(all.qkv.begin() + static_cast<std::ptrdiff_t>(row * 3 * 64),
                       all.qkv.begin() + static_cast<std::ptrdiff_t>((row + count) * 3 * 64));
      const std::vector<float> single = Run(alone, level);
      CHECK(Same(single.data(), together.data() + row * 64, count * 64));
    }
  }
}

TEST(ItemsMayRunInAnyOrderAndOnManyThreads) {
  const Problem p = Make({500, 3, 90, 241}, 3, 16, 0);
  for (const Simd level : Levels()) {
    const std::vector<float> expected = Run(p, level);
    std::vector<float> out;
    const AttentionPlan plan(Args(p, out), level);
    std::vector<std::thread> threads;
    for (std::int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&plan, t] {
        for (std::int64_t i = plan.items() - 1 - t; i >= 0; i -= 4) plan.Run(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(Same(out.data(), expected.data(), expected.size()));
  }
}

TEST(LargeScoresDoNotOverflow) {
  Problem p = Make({40, 300}, 1, 8, 0);
  for (float& x : p.qkv) x *= 30.0F;
  const std::vector<double> expected = Reference(p);
  for (const Simd level : Levels()) CHECK(Distance(Run(p, level), expected) < 2e-3);
}

TEST(NothingOutsideTheRowsIsWritten) {
  const Problem p = Make({6, 11}, 2, 8, 0);
  for (const Simd level : Levels()) {
    std::vector<float> guarded(static_cast<std::size_t>((p.rows() + 2) * 16), 7.0F);
    std::vector<float> unused;
    AttentionArgs args = Args(p, unused);
    args.out = guarded.data() + 16;
    AttentionPlan(args, level).RunAll();
    CHECK(std::all_of(guarded.begin(), guarded.begin() + 16, [](float x) { return x == 7.0F; }));
    CHECK(std::all_of(guarded.end() - 16, guarded.end(), [](float x) { return x == 7.0F; }));
  }
}

}  // namespace
}  // namespace orchid
