// Products of float rows with weights quantised in blocks of 32 inputs.
//
// A weight is scale * value + minimum, with value 0 to 15 (kFourBits), or scale * value, with value
// -128 to 127 (kEightBits): the numbers of Q4_1 and Q8_0 files. Rows are quantised to
// scale * value, value -127 to 127, by the same blocks, dot products within a block are integers,
// and a row's blocks are added up in their order. So a row's result is the same bits whatever rows
// are beside it, on any number of threads, and with any kernel set. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "orchid/cpu.h"
#include "orchid/rounds.h"

namespace orchid {

constexpr std::int64_t kBlockInputs = 32;
// Outputs whose weights lie side by side; matrices are padded to a multiple.
constexpr std::int64_t kGroupOutputs = 32;
// Rows that are multiplied together.
constexpr std::int64_t kTileRows = 8;

enum class BlockForm { kFourBits, kEightBits };

// Bytes of one block of inputs for one group of outputs:
//   kFourBits  float16 scale[32], float16 minimum[32], then for i in [0, 4) and output o four
//   bytes,
//              of which byte j has the value of input 4 i + j in its lower half and the one of
//              input 4 i + j + 16 in its upper half
//   kEightBits float16 scale[32], then for i in [0, 8) and output o the four values, plus 128, of
//              inputs 4 i to 4 i + 3
constexpr std::int64_t GroupBytes(BlockForm form) {
  return form == BlockForm::kFourBits ? 4 * kGroupOutputs + 16 * kGroupOutputs
                                      : 2 * kGroupOutputs + 32 * kGroupOutputs;
}

// Borrowed: [groups, blocks, GroupBytes(form)].
struct BlockWeights {
  BlockForm form = BlockForm::kFourBits;
  const std::uint8_t* data = nullptr;
  std::int64_t groups = 0;
  std::int64_t blocks = 0;
};

// What is done to rows before they are quantised: nothing, or x / rms(x) * scale.
struct RowNorm {
  const float* scale = nullptr;  // [inputs], or null for no norm
  float epsilon = 0.0F;
};

// Rows made ready for weights of one form; the memory grows once and is kept.
class QuantizedRows {
 public:
  // Makes room for `rows` of `blocks` * 32 inputs. The contents are undefined afterwards.
  void Resize(std::int64_t rows, std::int64_t blocks, BlockForm form);

  std::int64_t rows() const { return rows_; }
  std::int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  std::int64_t TileSize(std::int64_t tile) const;

  // Fills rows [row, row_end) from x [rows, blocks * 32]. Different rows may be filled at the same
  // time.
  void Fill(std::int64_t row, std::int64_t row_end, const float* x, const RowNorm& norm, Simd simd);

  // For each block of a tile of n rows: int8 values [n][32], float scale [n], and a term [n], which
  // is scale * (sum of values) as float for kFourBits and -128 * (sum of values) as int32 for
  // kEightBits.
  const unsigned char* Tile(std::int64_t tile) const;

 private:
  unsigned char* MutableTile(std::int64_t tile);

  std::int64_t rows_ = 0;
  std::int64_t blocks_ = 0;
  BlockForm form_ = BlockForm::kFourBits;
  std::vector<unsigned char> storage_;
};

enum class Epilogue {
  kNone,
  kAdd,     // adds a tensor of the output's shape
  kSwiGlu,  // of each group, silu(first 16 outputs) * (last 16): half as many outputs
};

// One product; borrowed.
struct BlockProductArgs {
  BlockWeights weights;
  const QuantizedRows* rows = nullptr;
  Epilogue epilogue = Epilogue::kNone;
  const float* add = nullptr;  // [rows, columns]
  float* out = nullptr;        // [rows, columns]; may be `add`
  std::int64_t columns = 0;    // at most what the groups give
};

// The product in items of work: any order and any number of threads will do, each item once. Items
// may run as soon as the rows are filled.
class BlockProductPlan {
 public:
  // `args` is copied; its rows must have their size.
  BlockProductPlan(const BlockProductArgs& args, Simd simd);

  std::int64_t items() const { return items_; }
  void Run(std::int64_t item) const;

 private:
  BlockProductArgs args_;
  Simd simd_;
  std::int64_t item_groups_ = 1;
  std::int64_t column_items_ = 1;
  std::int64_t items_ = 0;
};

// Adds two rounds: `storage` is filled with `rows` rows of x, and multiplied as `args` says but for
// its rows. All of it must outlive the rounds.
void AddProductRounds(Rounds& rounds, QuantizedRows& storage, std::int64_t rows, const float* x,
                      const RowNorm& norm, const BlockProductArgs& args, Simd simd);

}  // namespace orchid
