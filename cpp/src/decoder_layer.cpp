#include "orchid/decoder_layer.h"

#include <algorithm>
#include <string>

#include "orchid/error.h"

namespace orchid {
namespace {

float* Room(std::vector<float>& storage, std::int64_t count) {
  if (storage.size() < static_cast<std::size_t>(count)) {
    storage.resize(static_cast<std::size_t>(count));
  }
  return storage.data();
}

void CheckMatrix(const char* name, const BlockWeights& weights, std::int64_t inputs,
                 std::int64_t outputs) {
  if (weights.blocks * kBlockInputs == inputs && weights.groups * kGroupOutputs == outputs) return;
  throw InvalidInput(std::string(name) + " takes " + std::to_string(weights.blocks * kBlockInputs) +
                     " inputs and gives " + std::to_string(weights.groups * kGroupOutputs) +
                     "; accepted are " + std::to_string(inputs) + " and " +
                     std::to_string(outputs));
}

}  // namespace

void DecoderLayerWeights::Check(std::int64_t hidden, std::int64_t packed,
                                std::int64_t attention) const {
  const std::int64_t width = down.blocks * kBlockInputs;
  CheckMatrix("qkv", qkv, hidden, packed);
  CheckMatrix("attended", attended, attention, hidden);
  CheckMatrix("up", up, hidden, 2 * width);
  CheckMatrix("down", down, width, hidden);
}

DecoderLayerRun::DecoderLayerRun(const DecoderLayerWeights& weights, const PagedArgs& attention,
                                 const float* x, float* out, DecoderLayerScratch& scratch,
                                 Simd simd) {
  const std::int64_t rows = attention.rows;
  const std::int64_t hidden = weights.qkv.blocks * kBlockInputs;
  const std::int64_t width = weights.down.blocks * kBlockInputs;
  const std::int64_t packed = weights.qkv.groups * kGroupOutputs;
  const std::int64_t heads = attention.heads * attention.head_dim;
  float* qkv = Room(scratch.packed_, rows * packed);
  float* attended = Room(scratch.attended_, rows * heads);
  float* middle = Room(scratch.middle_, rows * hidden);
  float* active = Room(scratch.active_, rows * width);

  AddProductRounds(rounds_, scratch.normed_rows_, rows, x, weights.attention_norm,
                   {weights.qkv, nullptr, Epilogue::kNone, nullptr, qkv, packed}, simd);
  PagedArgs args = attention;
  args.qkv = qkv;
  args.out = attended;
  attention_ = std::make_unique<PagedPlan>(args, simd);
  rounds_.Add(attention_->writes(), [this](std::int64_t i) { attention_->Write(i); });
  rounds_.Add(attention_->items(), [this](std::int64_t i) { attention_->Attend(i); });
  AddProductRounds(rounds_, scratch.attended_rows_, rows, attended, {},
                   {weights.attended, nullptr, Epilogue::kAdd, x, middle, hidden}, simd);
  AddProductRounds(rounds_, scratch.middle_rows_, rows, middle, weights.mlp_norm,
                   {weights.up, nullptr, Epilogue::kSwiGlu, nullptr, active, width}, simd);
  AddProductRounds(rounds_, scratch.active_rows_, rows, active, {},
                   {weights.down, nullptr, Epilogue::kAdd, middle, out, hidden}, simd);
}

}  // namespace orchid
