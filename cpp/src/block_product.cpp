#include "orchid/block_product.h"

#include <algorithm>
#include <cstring>

#include "block_product_kernels.h"

namespace orchid {
namespace {

constexpr std::int64_t kHalfGroup = kGroupOutputs / 2;
// Items beside each other: enough for threads to end together, few enough to stream through memory.
constexpr std::int64_t kColumnItems = 32;
// Rows of an item: quantised, they stay in the second-level cache while weights pass by.
constexpr std::int64_t kItemTiles = 32;

const BlockKernels& Choose(Simd simd) {
#if defined(ORCHID_X86_KERNELS)
  if (Allows(simd, Simd::kAvx512)) return Avx512BlockKernels();
  if (Allows(simd, Simd::kAvx2) && HasF16c()) return Avx2BlockKernels();
#endif
  static_cast<void>(simd);
  return PortableBlockKernels();
}

float* RowScratch(std::int64_t inputs) {
  static thread_local std::vector<float> scratch;
  if (scratch.size() < static_cast<std::size_t>(inputs)) {
    scratch.resize(static_cast<std::size_t>(inputs));
  }
  return scratch.data();
}

// Writes one row of a group's sums; whole groups, which all but a padded last one are, go through
// the kernels.
void Store(const BlockProductArgs& args, const BlockKernels& kernels, std::int64_t row,
           std::int64_t group, const float* sums) {
  const std::int64_t size = args.epilogue == Epilogue::kSwiGlu ? kHalfGroup : kGroupOutputs;
  const std::int64_t column = group * size;
  const std::int64_t width = std::min(size, args.columns - column);
  float* to = args.out + row * args.columns + column;
  float part[kGroupOutputs];
  float* out = width == size ? to : part;
  switch (args.epilogue) {
    case Epilogue::kNone:
      std::copy_n(sums, width, to);
      return;
    case Epilogue::kAdd: {
      const float* add = args.add + row * args.columns + column;
      float padded[kGroupOutputs] = {};
      if (width < size) add = std::copy_n(add, width, padded) - width;
      kernels.add(add, sums, out);
      break;
    }
    case Epilogue::kSwiGlu:
      kernels.swiglu(sums, sums + kHalfGroup, out);
      break;
  }
  if (width < size) std::copy_n(part, width, to);
}

}  // namespace

void QuantizedRows::Resize(std::int64_t rows, std::int64_t blocks, BlockForm form) {
  rows_ = rows;
  blocks_ = blocks;
  form_ = form;
  const auto bytes = static_cast<std::size_t>(rows * blocks * kTileRowBytes);
  if (storage_.size() < bytes) storage_.resize(bytes);
}

std::int64_t QuantizedRows::TileSize(std::int64_t tile) const {
  return std::min(kTileRows, rows_ - tile * kTileRows);
}

const unsigned char* QuantizedRows::Tile(std::int64_t tile) const {
  return storage_.data() + tile * kTileRows * blocks_ * kTileRowBytes;
}

unsigned char* QuantizedRows::MutableTile(std::int64_t tile) {
  return storage_.data() + tile * kTileRows * blocks_ * kTileRowBytes;
}

void QuantizedRows::Fill(std::int64_t row, std::int64_t row_end, const float* x,
                         const RowNorm& norm, Simd simd) {
  const BlockKernels& kernels = Choose(simd);
  const std::int64_t inputs = blocks_ * kBlockInputs;
  for (; row < row_end; ++row) {
    const float* from = x + row * inputs;
    if (norm.scale != nullptr) {
      float* normed = RowScratch(inputs);
      kernels.normalize(from, norm.scale, inputs, norm.epsilon, normed);
      from = normed;
    }
    const std::int64_t tile = row / kTileRows;
    kernels.quantize(from, blocks_, form_, row % kTileRows, TileSize(tile), MutableTile(tile));
  }
}

BlockProductPlan::BlockProductPlan(const BlockProductArgs& args, Simd simd)
    : args_(args), simd_(simd) {
  item_groups_ = std::max<std::int64_t>(1, args.weights.groups / kColumnItems);
  column_items_ = (args.weights.groups + item_groups_ - 1) / item_groups_;
  items_ = column_items_ * ((args.rows->tiles() + kItemTiles - 1) / kItemTiles);
}

void BlockProductPlan::Run(std::int64_t item) const {
  const BlockKernels& kernels = Choose(simd_);
  const BlockWeights& weights = args_.weights;
  const std::int64_t bytes = weights.blocks * GroupBytes(weights.form);
  const std::int64_t tile = item / column_items_ * kItemTiles;
  const std::int64_t tile_end = std::min(tile + kItemTiles, args_.rows->tiles());
  const std::int64_t group = item % column_items_ * item_groups_;
  const std::int64_t group_end = std::min(group + item_groups_, weights.groups);
  alignas(64) float sums[kTileRows * kGroupOutputs];
  for (std::int64_t g = group; g < group_end; ++g) {
    // All tiles by one group: its weights stay in the first-level cache.
    for (std::int64_t t = tile; t < tile_end; ++t) {
      const std::int64_t rows = args_.rows->TileSize(t);
      kernels.multiply(weights.form, weights.data + g * bytes, args_.rows->Tile(t), rows,
                       weights.blocks, sums);
      for (std::int64_t r = 0; r < rows; ++r) {
        Store(args_, kernels, t * kTileRows + r, g, sums + r * kGroupOutputs);
      }
    }
  }
}

void AddProductRounds(Rounds& rounds, QuantizedRows& storage, std::int64_t rows, const float* x,
                      const RowNorm& norm, const BlockProductArgs& args, Simd simd) {
  storage.Resize(rows, args.weights.blocks, args.weights.form);
  rounds.Add(storage.tiles(), [&storage, rows, x, norm, simd](std::int64_t tile) {
    storage.Fill(tile * kTileRows, std::min((tile + 1) * kTileRows, rows), x, norm, simd);
  });
  BlockProductArgs product = args;
  product.rows = &storage;
  const BlockProductPlan plan(product, simd);
  rounds.Add(plan.items(), [plan](std::int64_t item) { plan.Run(item); });
}

}  // namespace orchid
