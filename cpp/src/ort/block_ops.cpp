#include "ort/block_ops.h"

#include <cstdint>
#include <memory>
#include <string>

#include "orchid/block_product.h"
#include "orchid/cpu.h"
#include "orchid/decoder_layer.h"
#include "orchid/rounds.h"
#include "ort/attention_settings.h"
#include "ort/op_support.h"

namespace orchid {
namespace {

constexpr auto kUint8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;

// Inputs of DecoderLayer: x, the step's four, and the weights.
enum LayerInput : std::size_t {
  kStepInputs = 1,
  kAttentionNorm = 5,
  kQkv,
  kAttended,
  kMlpNorm,
  kUp,
  kDown,
  kLayerInputs
};

// Threads of a session beyond these do not take part.
constexpr std::size_t kMostThreads = 16;

// A matrix, which must be an initializer of the graph.
BlockWeights WeightsOf(const Ort::ConstKernelInfo& info, std::size_t input, const char* name) {
  int constant = 0;
  const Ort::ConstValue value = info.GetTensorConstantInput(input, &constant);
  if (constant == 0) throw InvalidInput(std::string(name) + " must be an initializer");
  const Shape shape = ShapeOf(value);
  if (shape.size() != 3 || shape[0] < 1 || shape[1] < 1) {
    throw InvalidInput(std::string("accepted is ") + name + " [groups, blocks, bytes]");
  }
  BlockWeights weights;
  weights.data = value.GetTensorData<std::uint8_t>();
  weights.groups = shape[0];
  weights.blocks = shape[1];
  for (const BlockForm form : {BlockForm::kFourBits, BlockForm::kEightBits}) {
    weights.form = form;
    if (shape[2] == GroupBytes(form)) return weights;
  }
  throw InvalidInput(std::string(name) + " has groups of " + std::to_string(shape[2]) +
                     " bytes; accepted are " + std::to_string(GroupBytes(BlockForm::kFourBits)) +
                     " and " + std::to_string(GroupBytes(BlockForm::kEightBits)));
}

// A norm's scale of `inputs` numbers, which must be an initializer.
RowNorm NormOf(const Ort::ConstKernelInfo& info, std::size_t input, std::int64_t inputs) {
  int constant = 0;
  const Ort::ConstValue value = info.GetTensorConstantInput(input, &constant);
  if (constant == 0) throw InvalidInput("a norm must be an initializer");
  if (ShapeOf(value) != Shape{inputs}) {
    throw InvalidInput("a norm has another size than the rows it is for");
  }
  return {value.GetTensorData<float>(), OptionalAttribute<float>(info, "epsilon", 0.0F)};
}

void CheckColumns(const Shape& shape, const BlockWeights& weights) {
  if (shape[1] == weights.blocks * kBlockInputs) return;
  throw InvalidInput("x has " + std::to_string(shape[1]) + " columns; the weights take " +
                     std::to_string(weights.blocks * kBlockInputs));
}

// Runs all rounds on the session's threads.
void RunRounds(Ort::KernelContext& context, Rounds& rounds) {
  context.ParallelFor([](void* data, std::size_t) { static_cast<Rounds*>(data)->Participate(); },
                      kMostThreads, 0, &rounds);
  rounds.Check();
}

class BlockProductKernel {
 public:
  explicit BlockProductKernel(const OrtKernelInfo* raw) : simd_(DetectSimd()) {
    const Ort::ConstKernelInfo info(raw);
    weights_ = WeightsOf(info, 1, "weights");
    if (info.GetInputCount() > 2) norm_ = NormOf(info, 2, weights_.blocks * kBlockInputs);
    columns_ = info.GetAttribute<std::int64_t>("columns");
    if (columns_ < 1 || columns_ > weights_.groups * kGroupOutputs) {
      throw InvalidInput("columns is " + std::to_string(columns_) + "; accepted is 1 to " +
                         std::to_string(weights_.groups * kGroupOutputs));
    }
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  void Compute(Ort::KernelContext context) const {
    const auto x = context.GetInput(0);
    const Shape shape = MatrixShape(x, "x");
    CheckColumns(shape, weights_);
    auto out = context.GetOutput(0, Shape{shape[0], columns_});
    if (shape[0] == 0) return;
    // Kept between runs: a thread that runs steps needs it for every product of each.
    static thread_local QuantizedRows rows;
    Rounds rounds;
    AddProductRounds(
        rounds, rows, shape[0], x.GetTensorData<float>(), norm_,
        {weights_, nullptr, Epilogue::kNone, nullptr, out.GetTensorMutableData<float>(), columns_},
        simd_);
    RunRounds(context, rounds);
  }

  Simd simd_;
  BlockWeights weights_;
  RowNorm norm_;
  std::int64_t columns_ = 0;
};

class DecoderLayerKernel {
 public:
  explicit DecoderLayerKernel(const OrtKernelInfo* raw)
      : simd_(DetectSimd()), attention_(Ort::ConstKernelInfo(raw)) {
    const Ort::ConstKernelInfo info(raw);
    weights_.qkv = WeightsOf(info, kQkv, "qkv");
    weights_.attended = WeightsOf(info, kAttended, "attended");
    weights_.up = WeightsOf(info, kUp, "up");
    weights_.down = WeightsOf(info, kDown, "down");
    hidden_ = weights_.qkv.blocks * kBlockInputs;
    weights_.attention_norm = NormOf(info, kAttentionNorm, hidden_);
    weights_.mlp_norm = NormOf(info, kMlpNorm, hidden_);
    head_dim_ = weights_.attended.blocks * kBlockInputs / attention_.heads;
    weights_.Check(hidden_, head_dim_ * (attention_.heads + 2 * attention_.kv_heads),
                   head_dim_ * attention_.heads);
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  void Compute(Ort::KernelContext context) const {
    const auto x = context.GetInput(0);
    const Shape shape = MatrixShape(x, "x");
    CheckColumns(shape, weights_.qkv);
    PagedArgs attention;
    const KvStep& step = attention_.Open(context, kStepInputs, shape[0], head_dim_, attention);
    auto out = context.GetOutput(0, shape);
    static thread_local DecoderLayerScratch scratch;
    DecoderLayerRun run(weights_, attention, x.GetTensorData<float>(),
                        out.GetTensorMutableData<float>(), scratch, simd_);
    RunRounds(context, run.rounds());
    step.AddAttention(run.AttentionNs());
  }

  Simd simd_;
  AttentionSettings attention_;
  DecoderLayerWeights weights_;
  std::int64_t hidden_ = 0;
  std::int64_t head_dim_ = 0;
};

struct BlockProductOp : OpBase<BlockProductOp, BlockProductKernel> {
  const char* GetName() const { return "BlockProduct"; }
  std::size_t GetInputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return i == 1 ? kUint8 : kFloat; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i == 2 ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
};

struct DecoderLayerOp : OpBase<DecoderLayerOp, DecoderLayerKernel> {
  const char* GetName() const { return "DecoderLayer"; }
  std::size_t GetInputTypeCount() const { return kLayerInputs; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    if (i == kQkv || i == kAttended || i == kUp || i == kDown) return kUint8;
    if (i == kStepInputs + 3) return kInt64;
    return i >= kStepInputs && i < kStepInputs + 3 ? kInt32 : kFloat;
  }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
};

}  // namespace

struct BlockOps::Ops {
  DecoderLayerOp layer;
  BlockProductOp product;
};

BlockOps::BlockOps() : ops_(std::make_unique<Ops>()) {}
BlockOps::~BlockOps() = default;

void BlockOps::AddTo(Ort::CustomOpDomain& domain) {
  domain.Add(&ops_->layer);
  domain.Add(&ops_->product);
}

}  // namespace orchid
