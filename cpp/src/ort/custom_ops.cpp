// The "orchid" custom-op domain: the ragged kernels as ONNX Runtime operators.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "orchid/attention.h"
#include "orchid/cpu.h"
#include "orchid/error.h"
#include "orchid/ragged.h"
#include "orchid/row_offsets.h"
#include "ort/api.h"
#include "ort/block_ops.h"
#include "ort/op_support.h"
#include "ort/paged_ops.h"

namespace orchid {
namespace {

struct Offsets {
  const std::int32_t* data;
  std::int64_t sequences;
};

Offsets CheckedOffsets(const Ort::ConstValue& value, std::int64_t rows) {
  const Shape shape = ShapeOf(value);
  if (shape.size() != 1) {
    throw InvalidInput("row_offsets has rank " + std::to_string(shape.size()) + "; accepted is 1");
  }
  const auto* data = value.GetTensorData<std::int32_t>();
  CheckRowOffsets(data, static_cast<std::size_t>(shape[0]), rows);
  return {data, shape[0] - 1};
}

class RaggedAttentionKernel {
 public:
  explicit RaggedAttentionKernel(const OrtKernelInfo* raw) : simd_(DetectSimd()) {
    const Ort::ConstKernelInfo info(raw);
    heads_ = info.GetAttribute<std::int64_t>("num_heads");
    if (heads_ < 1) {
      throw InvalidInput("num_heads is " + std::to_string(heads_) + "; accepted is at least 1");
    }
    scale_ = OptionalAttribute<float>(info, "scale", 0.0F);
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  void Compute(Ort::KernelContext context) const {
    const auto qkv = context.GetInput(0);
    const Shape shape = MatrixShape(qkv, "qkv");
    if (shape[1] == 0 || shape[1] % (3 * heads_) != 0) {
      throw InvalidInput(
          "qkv has " + std::to_string(shape[1]) +
          " columns; accepted is a multiple of 3 * num_heads = " + std::to_string(3 * heads_));
    }
    const Offsets offsets = CheckedOffsets(context.GetInput(1), shape[0]);
    AttentionArgs args;
    args.qkv = qkv.GetTensorData<float>();
    args.offsets = offsets.data;
    args.sequences = offsets.sequences;
    args.heads = heads_;
    args.head_dim = shape[1] / (3 * heads_);
    args.scale = scale_ > 0.0F ? scale_ : 1.0F / std::sqrt(static_cast<float>(args.head_dim));
    ReadBias(context, args);
    args.out = context.GetOutput(0, Shape{shape[0], shape[1] / 3}).GetTensorMutableData<float>();
    RunPlan(context, AttentionPlan(args, simd_));
  }

  void ReadBias(const Ort::KernelContext& context, AttentionArgs& args) const {
    if (context.GetInputCount() < 3) return;
    const auto bias = context.GetInput(2);
    if (!bias) return;
    const Shape shape = MatrixShape(bias, "bias");
    if (shape[0] != heads_ || shape[1] % 2 != 1) {
      throw InvalidInput("bias has shape [" + std::to_string(shape[0]) + ", " +
                         std::to_string(shape[1]) + "]; accepted is [" + std::to_string(heads_) +
                         ", an odd number]");
    }
    args.bias = bias.GetTensorData<float>();
    args.bias_reach = (shape[1] + 1) / 2;
  }

  static void RunPlan(Ort::KernelContext& context, const AttentionPlan& plan) {
    // Runs inline when the session has one thread; otherwise on ONNX Runtime's own pool.
    context.ParallelFor(
        [](void* data, std::size_t i) {
          static_cast<const AttentionPlan*>(data)->Run(static_cast<std::int64_t>(i));
        },
        static_cast<std::size_t>(plan.items()), 0, const_cast<AttentionPlan*>(&plan));
  }

  Simd simd_;
  std::int64_t heads_ = 1;
  float scale_ = 0.0F;
};

class RaggedMeanKernel {
 public:
  explicit RaggedMeanKernel(const OrtKernelInfo*) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] {
      Ort::KernelContext context(raw);
      const auto x = context.GetInput(0);
      const Shape shape = MatrixShape(x, "x");
      const Offsets offsets = CheckedOffsets(context.GetInput(1), shape[0]);
      auto out = context.GetOutput(0, Shape{offsets.sequences, shape[1]});
      RaggedMean(x.GetTensorData<float>(), shape[1], offsets.data, offsets.sequences,
                 out.GetTensorMutableData<float>());
    });
  }
};

class RaggedPositionsKernel {
 public:
  explicit RaggedPositionsKernel(const OrtKernelInfo*) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] {
      Ort::KernelContext context(raw);
      const Shape shape = ShapeOf(context.GetInput(0));
      if (shape.size() != 1) {
        throw InvalidInput("input_ids has rank " + std::to_string(shape.size()) +
                           "; accepted is 1");
      }
      const Offsets offsets = CheckedOffsets(context.GetInput(1), shape[0]);
      auto out = context.GetOutput(0, shape);
      RaggedPositions(offsets.data, offsets.sequences, out.GetTensorMutableData<std::int64_t>());
    });
  }
};

struct RaggedAttentionOp : OpBase<RaggedAttentionOp, RaggedAttentionKernel> {
  const char* GetName() const { return "RaggedAttention"; }
  std::size_t GetInputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return i == 1 ? kInt32 : kFloat; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i == 2 ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  static Ort::Status InferOutputShape(Ort::ShapeInferContext& context) {
    auto shape = context.GetInputShape(0);
    if (shape.size() == 2 && shape[1].IsInt()) {
      shape[1] = Ort::ShapeInferContext::SymbolicInteger(shape[1].AsInt() / 3);
      return context.SetOutputShape(0, shape);
    }
    return Ort::Status{nullptr};
  }
};

struct RaggedMeanOp : OpBase<RaggedMeanOp, RaggedMeanKernel> {
  const char* GetName() const { return "RaggedMean"; }
  std::size_t GetInputTypeCount() const { return 2; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return i == 1 ? kInt32 : kFloat; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
};

struct RaggedPositionsOp : OpBase<RaggedPositionsOp, RaggedPositionsKernel> {
  const char* GetName() const { return "RaggedPositions"; }
  std::size_t GetInputTypeCount() const { return 2; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return i == 1 ? kInt32 : kInt64; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kInt64; }
  static Ort::Status InferOutputShape(Ort::ShapeInferContext& context) {
    return context.SetOutputShape(0, context.GetInputShape(0), kInt64);
  }
};

struct Domain {
  RaggedAttentionOp attention;
  RaggedMeanOp mean;
  RaggedPositionsOp positions;
  BlockOps blocks;
  PagedOps paged;
  Ort::CustomOpDomain domain{"orchid"};
};

// Outlives every session: ONNX Runtime keeps pointers to the operators.
Domain* g_domain = nullptr;

}  // namespace

void MakeCustomOps() {
  auto* made = new Domain;
  made->domain.Add(&made->attention);
  made->domain.Add(&made->mean);
  made->domain.Add(&made->positions);
  made->blocks.AddTo(made->domain);
  made->paged.AddTo(made->domain);
  g_domain = made;
}

void AddCustomOps(Ort::UnownedSessionOptions options) { options.Add(g_domain->domain); }

}  // namespace orchid
