#include "orchid/block_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "orchid/half.h"

namespace orchid {
namespace {

using Floats = std::vector<float>;

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

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Packs weights as the header says, and keeps the numbers they stand for.
struct Matrix {
  BlockForm form;
  std::int64_t groups, blocks;
  std::vector<std::uint8_t> packed;
  std::vector<double> weights;  // [outputs, inputs]

  Matrix(BlockForm f, std::int64_t group_count, std::int64_t block_count, unsigned seed)
      : form(f), groups(group_count), blocks(block_count) {
    const std::int64_t inputs = blocks * kBlockInputs;
    packed.resize(static_cast<std::size_t>(groups * blocks * GroupBytes(form)));
    weights.resize(static_cast<std::size_t>(groups * kGroupOutputs * inputs));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.05F);
    for (std::int64_t o = 0; o < groups * kGroupOutputs; ++o) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::uint16_t scale = HalfFromFloat(normal(random));
        const std::uint16_t minimum = HalfFromFloat(normal(random));
        Put(o, b, 0, scale);
        if (form == BlockForm::kFourBits) Put(o, b, 2 * kGroupOutputs, minimum);
        for (std::int64_t i = 0; i < kBlockInputs; ++i) {
          // Extreme values often, so that anything that saturates shows.
          const unsigned draw = random();
          double& weight = weights[static_cast<std::size_t>(o * inputs + b * kBlockInputs + i)];
          if (form == BlockForm::kFourBits) {
            const unsigned value = draw % 3 == 0 ? 15 : draw / 3 % 16;
            PutFour(o, b, i, value);
            weight = double{FloatFromHalf(scale)} * value + FloatFromHalf(minimum);
          } else {
            const int value = draw % 3 == 0 ? -128 : static_cast<int>(draw / 3 % 256) - 128;
            PutEight(o, b, i, value);
            weight = double{FloatFromHalf(scale)} * value;
          }
        }
      }
    }
  }

  std::uint8_t* Block(std::int64_t o, std::int64_t b) {
    return packed.data() + (o / kGroupOutputs * blocks + b) * GroupBytes(form);
  }
  void Put(std::int64_t o, std::int64_t b, std::int64_t at, std::uint16_t half) {
    std::memcpy(Block(o, b) + at + 2 * (o % kGroupOutputs), &half, 2);
  }
  void PutFour(std::int64_t o, std::int64_t b, std::int64_t i, unsigned value) {
    const std::int64_t half = i % 16;
    std::uint8_t& byte = Block(
        o, b)[4 * kGroupOutputs + (half / 4 * kGroupOutputs + o % kGroupOutputs) * 4 + half % 4];
    byte = static_cast<std::uint8_t>(byte | value << (i < 16 ? 0 : 4));
  }
  void PutEight(std::int64_t o, std::int64_t b, std::int64_t i, int value) {
    Block(o, b)[2 * kGroupOutputs + (i / 4 * kGroupOutputs + o % kGroupOutputs) * 4 + i % 4] =
        static_cast<std::uint8_t>(value + 128);
  }

  BlockWeights View() const { return {form, packed.data(), groups, blocks}; }
};

struct Problem {
  const Matrix* matrix;
  std::int64_t rows;
  const float* x;
  RowNorm norm;
  Epilogue epilogue = Epilogue::kNone;
  const float* add = nullptr;
  std::int64_t columns = 0;

  Floats Run(Simd simd) const {
    QuantizedRows quantized;
    quantized.Resize(rows, matrix->blocks, matrix->form);
    quantized.Fill(rows / 2, rows, x, norm, simd);
    quantized.Fill(0, rows / 2, x, norm, simd);
    Floats out(static_cast<std::size_t>(rows * columns), 7.0F);
    BlockProductArgs args;
    args.weights = matrix->View();
    args.rows = &quantized;
    args.epilogue = epilogue;
    args.add = add;
    args.out = out.data();
    args.columns = columns;
    const BlockProductPlan plan(args, simd);
    for (std::int64_t i = plan.items() - 1; i >= 0; --i) plan.Run(i);
    return out;
  }
};

// The rows as they are after quantisation, by its definition.
std::vector<double> Rounded(const Floats& x) {
  std::vector<double> values;
  for (std::size_t b = 0; b < x.size(); b += kBlockInputs) {
    float largest = 0.0F;
    for (std::size_t i = b; i < b + kBlockInputs; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (std::size_t i = b; i < b + kBlockInputs; ++i) {
      values.push_back(largest > 0.0F
                           ? std::nearbyint(x[i] * (127.0F / largest)) * double{largest / 127.0F}
                           : 0.0);
    }
  }
  return values;
}

constexpr BlockForm kForms[] = {BlockForm::kFourBits, BlockForm::kEightBits};

TEST(BlockProductsMatchTheirDefinition) {
  for (const BlockForm form : kForms) {
    const Matrix matrix(form, 3, 5, 1);
    const std::int64_t inputs = 5 * kBlockInputs;
    const std::int64_t outputs = 3 * kGroupOutputs;
    for (const std::int64_t rows : {1, 7, 8, 19}) {
      Floats x = Random(rows * inputs, 2);
      std::fill_n(x.begin(), kBlockInputs, 0.0F);  // a block of nothing
      const std::vector<double> rounded = Rounded(x);
      for (const Simd level : Levels()) {
        const Floats out =
            Problem{&matrix, rows, x.data(), {}, Epilogue::kNone, nullptr, outputs}.Run(level);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t o = 0; o < outputs; ++o) {
            double expected = 0.0;
            double size = 0.0;
            for (std::int64_t i = 0; i < inputs; ++i) {
              const double term = rounded[static_cast<std::size_t>(r * inputs + i)] *
                                  matrix.weights[static_cast<std::size_t>(o * inputs + i)];
              expected += term;
              size += std::fabs(term);
            }
            CHECK(std::fabs(out[static_cast<std::size_t>(r * outputs + o)] - expected) <
                  1e-6 * size);
          }
        }
      }
    }
  }
}

TEST(EveryKernelSetGivesTheSameBits) {
  for (const BlockForm form : kForms) {
    for (std::int64_t rows = 1; rows <= 17; ++rows) {
      const Matrix matrix(form, 2, 18, 3);
      const Floats x = Random(rows * 18 * kBlockInputs, 4);
      const Floats scale = Random(18 * kBlockInputs, 5);
      const Floats add = Random(rows * 2 * kGroupOutputs, 6);
      const Problem p{&matrix,        rows,       x.data(), {scale.data(), 1e-5F},
                      Epilogue::kAdd, add.data(), 64};
      const Floats expected = p.Run(Simd::kPortable);
      for (const Simd level : Levels()) CHECK(SameBits(p.Run(level), expected));
    }
  }
}

TEST(ARowOfABlockProductIsTheSameBitsInAnyCompany) {
  for (const BlockForm form : kForms) {
    const Matrix matrix(form, 2, 7, 7);
    const std::int64_t inputs = 7 * kBlockInputs;
    const Floats x = Random(21 * inputs, 8);
    const Floats scale = Random(inputs, 9);
    for (const Simd level : Levels()) {
      for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kSwiGlu}) {
        const std::int64_t columns = epilogue == Epilogue::kSwiGlu ? 32 : 64;
        Problem p{&matrix, 21, x.data(), {scale.data(), 1e-5F}, epilogue, nullptr, columns};
        const Floats all = p.Run(level);
        for (std::int64_t r = 0; r < 21; ++r) {
          p.rows = 1;
          p.x = x.data() + r * inputs;
          CHECK(SameBits(p.Run(level),
                         Floats(all.begin() + r * columns, all.begin() + (r + 1) * columns)));
        }
      }
    }
  }
}

TEST(NormsAndGatesOfABlockProductMatchTheirDefinition) {
  const Matrix matrix(BlockForm::kEightBits, 2, 4, 10);
  const std::int64_t inputs = 4 * kBlockInputs;
  const Floats x = Random(3 * inputs, 11);
  const Floats scale = Random(inputs, 12);
  Floats normed(x.size());
  for (std::int64_t r = 0; r < 3; ++r) {
    double squares = 0.0;
    for (std::int64_t i = 0; i < inputs; ++i)
      squares += double{x[r * inputs + i]} * x[r * inputs + i];
    for (std::int64_t i = 0; i < inputs; ++i) {
      normed[r * inputs + i] = static_cast<float>(
          x[r * inputs + i] / std::sqrt(squares / static_cast<double>(inputs) + 0.25) * scale[i]);
    }
  }
  for (const Simd level : Levels()) {
    const Floats plain =
        Problem{&matrix, 3, normed.data(), {}, Epilogue::kNone, nullptr, 64}.Run(level);
    const Floats fused =
        Problem{&matrix, 3, x.data(), {scale.data(), 0.25F}, Epilogue::kNone, nullptr, 64}.Run(
            level);
    // A norm that differs in its last bit may round a value to its neighbour.
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CHECK(std::fabs(plain[i] - fused[i]) < 0.2F);
    }
    const Floats glu =
        Problem{&matrix, 3, normed.data(), {}, Epilogue::kSwiGlu, nullptr, 32}.Run(level);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 32; ++c) {
        const std::int64_t at = r * 64 + c / 16 * 32 + c % 16;
        const double gate = plain[static_cast<std::size_t>(at)];
        const double expected =
            gate / (1.0 + std::exp(-gate)) * plain[static_cast<std::size_t>(at + 16)];
        CHECK(std::fabs(glu[static_cast<std::size_t>(r * 32 + c)] - expected) <
              1e-6 * (1.0 + std::fabs(expected)));
      }
    }
  }
}

TEST(PaddedOutputsOfABlockProductAreNotWritten) {
  const Matrix matrix(BlockForm::kFourBits, 2, 1, 13);
  const Floats x = Random(9 * kBlockInputs, 14);
  for (const Simd level : Levels()) {
    const Floats all = Problem{&matrix, 9, x.data(), {}, Epilogue::kNone, nullptr, 64}.Run(level);
    const Floats some = Problem{&matrix, 9, x.data(), {}, Epilogue::kNone, nullptr, 37}.Run(level);
    for (std::int64_t r = 0; r < 9; ++r) {
      CHECK(std::equal(some.begin() + r * 37, some.begin() + (r + 1) * 37, all.begin() + r * 64));
    }
  }
}

TEST(ARowThatIsNotFiniteStaysSo) {
  for (const BlockForm form : kForms) {
    const Matrix matrix(form, 1, 2, 15);
    Floats x = Random(2 * 2 * kBlockInputs, 16);
    x[5] = std::numeric_limits<float>::infinity();
    for (const Simd level : Levels()) {
      const Floats out = Problem{&matrix, 2, x.data(), {}, Epilogue::kNone, nullptr, 32}.Run(level);
      for (std::size_t o = 0; o < 32; ++o) CHECK(!std::isfinite(out[o]));
      for (std::size_t o = 32; o < 64; ++o) CHECK(std::isfinite(out[o]));
    }
  }
}

}  // namespace
}  // namespace orchid
