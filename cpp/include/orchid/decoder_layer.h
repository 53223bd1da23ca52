// One layer of a LLaMA-like decoder with block-quantised weights, as rounds of work items:
//   y = x + attention(norm(x) qkv) attended;  out = y + swiglu(norm(y) up) down
// A row's result is the same bits whatever rows are beside it and on any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "orchid/block_product.h"
#include "orchid/paged_attention.h"
#include "orchid/rounds.h"

namespace orchid {

// Borrowed. Matrices have no padded outputs; `up` has its gates and ups as Epilogue::kSwiGlu reads
// them.
struct DecoderLayerWeights {
  RowNorm attention_norm;
  BlockWeights qkv;
  BlockWeights attended;
  RowNorm mlp_norm;
  BlockWeights up;
  BlockWeights down;

  // Throws InvalidInput, which names the matrix, unless all fit rows of `hidden` and attention that
  // takes `packed` columns and gives `attention`.
  void Check(std::int64_t hidden, std::int64_t packed, std::int64_t attention) const;
};

// What is computed on the way; the memory grows once and is kept.
class DecoderLayerScratch {
 public:
  DecoderLayerScratch() = default;

 private:
  friend class DecoderLayerRun;
  std::vector<float> packed_;
  std::vector<float> attended_;
  std::vector<float> middle_;
  std::vector<float> active_;
  QuantizedRows normed_rows_;
  QuantizedRows attended_rows_;
  QuantizedRows middle_rows_;
  QuantizedRows active_rows_;
};

// One run of a layer. Everything named must outlive it; `weights` are checked.
class DecoderLayerRun {
 public:
  // `attention` has everything but qkv and out; x and out are [attention.rows, hidden].
  DecoderLayerRun(const DecoderLayerWeights& weights, const PagedArgs& attention, const float* x,
                  float* out, DecoderLayerScratch& scratch, Simd simd);

  Rounds& rounds() { return rounds_; }
  // After the last round: nanoseconds that attention took.
  std::int64_t AttentionNs() const { return rounds_.Elapsed(kWrite, kAttend); }

 private:
  // Rounds of the attention among all of them.
  static constexpr std::size_t kWrite = 2;
  static constexpr std::size_t kAttend = 3;

  Rounds rounds_;
  std::unique_ptr<PagedPlan> attention_;
};

}  // namespace orchid
