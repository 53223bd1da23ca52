#include "orchid/block_rest.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace orchid {
namespace {

using Floats = std::vector<float>;

Floats Random(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  Floats values(static_cast<std::size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

struct Problem {
  std::int64_t rows, blocks, outputs;
  Floats x, rest, product;

  Problem(std::int64_t r, std::int64_t b, std::int64_t n)
      : rows(r),
        blocks(b),
        outputs(n),
        x(Random(r * b * kRestBlock, 1)),
        rest(Random(b * n, 2)),
        product(Random(r * n, 3)) {}

  Floats Run(Simd simd, std::int64_t first, std::int64_t end) const {
    Floats sums(static_cast<std::size_t>(rows * blocks));
    SumBlocks(x.data(), rows, blocks, sums.data(), simd);
    Floats out(product.size(), 7.0F);
    BlockRestArgs args;
    args.product = product.data();
    args.sums = sums.data();
    args.rest = rest.data();
    args.out = out.data();
    args.rows = rows;
    args.blocks = blocks;
    args.outputs = outputs;
    // In two column ranges, as items of work are cut.
    AddBlockRest(args, first, end, 0, outputs / 2, simd);
    AddBlockRest(args, first, end, outputs / 2, outputs, simd);
    return out;
  }
};

std::vector<Simd> Levels() {
  std::vector<Simd> levels{Simd::kPortable};
  if (DetectSimd() >= Simd::kAvx2) levels.push_back(Simd::kAvx2);
  return levels;
}

TEST(BlockRestMatchesItsDefinition) {
  for (const std::int64_t outputs : {1, 7, 8, 30, 97}) {
    for (const std::int64_t rows : {1, 2, 7}) {
      const Problem p(rows, 3, outputs);
      for (const Simd level : Levels()) {
        const Floats out = p.Run(level, 0, rows);
        for (std::int64_t t = 0; t < rows; ++t) {
          for (std::int64_t n = 0; n < outputs; ++n) {
            double expected = p.product[static_cast<std::size_t>(t * outputs + n)];
            for (std::int64_t i = 0; i < 3 * kRestBlock; ++i) {
              expected +=
                  static_cast<double>(p.x[static_cast<std::size_t>(t * 3 * kRestBlock + i)]) *
                  p.rest[static_cast<std::size_t>(i / kRestBlock * outputs + n)];
            }
            CHECK(std::fabs(out[static_cast<std::size_t>(t * outputs + n)] - expected) < 2e-5);
          }
        }
      }
    }
  }
}

TEST(ARowOfBlockRestIsTheSameBitsInAnyCompany) {
  const Problem p(11, 18, 77);
  for (const Simd level : Levels()) {
    const Floats all = p.Run(level, 0, 11);
    for (std::int64_t t = 0; t < 11; ++t) {
      const Floats one = p.Run(level, t, t + 1);
      for (std::int64_t n = 0; n < 77; ++n) {
        const auto at = static_cast<std::size_t>(t * 77 + n);
        CHECK(one[at] == all[at]);
      }
      // No other row was touched.
      CHECK(one[static_cast<std::size_t>((t + 1) % 11 * 77)] == 7.0F);
    }
  }
}

}  // namespace
}  // namespace orchid
