#include "ort/paged_ops.h"

#include <chrono>
#include <memory>
#include <string>

#include "orchid/cpu.h"
#include "orchid/paged_attention.h"
#include "ort/attention_settings.h"
#include "ort/op_support.h"

namespace orchid {
namespace {

// Steps with this many new tokens or fewer are written by the calling thread: less work than
// waking another one.
constexpr std::int64_t kInlineTokens = 16;

template <void (PagedPlan::*kRun)(std::int64_t) const>
void RunItems(Ort::KernelContext& context, const PagedPlan& plan, std::int64_t items) {
  context.ParallelFor(
      [](void* data, std::size_t i) {
        (static_cast<const PagedPlan*>(data)->*kRun)(static_cast<std::int64_t>(i));
      },
      static_cast<std::size_t>(items), 0, const_cast<PagedPlan*>(&plan));
}

class PagedAttentionKernel {
 public:
  explicit PagedAttentionKernel(const OrtKernelInfo* raw)
      : simd_(DetectSimd()), attention_(Ort::ConstKernelInfo(raw)) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  void Compute(Ort::KernelContext context) const {
    const auto qkv = context.GetInput(0);
    const Shape shape = MatrixShape(qkv, "qkv");
    const std::int64_t slices = attention_.heads + 2 * attention_.kv_heads;
    if (shape[1] == 0 || shape[1] % slices != 0) {
      throw InvalidInput("qkv has " + std::to_string(shape[1]) +
                         " columns; accepted is a multiple of " + std::to_string(slices));
    }
    const std::int64_t head_dim = shape[1] / slices;
    PagedArgs args;
    const KvStep& step = attention_.Open(context, 1, shape[0], head_dim, args);
    args.qkv = qkv.GetTensorData<float>();
    auto out = context.GetOutput(0, Shape{shape[0], attention_.heads * head_dim});
    args.out = out.GetTensorMutableData<float>();
    const auto start = std::chrono::steady_clock::now();
    Attend(context, PagedPlan(args, simd_), shape[0]);
    const auto taken = std::chrono::steady_clock::now() - start;
    step.AddAttention(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count());
  }

  static void Attend(Ort::KernelContext& context, const PagedPlan& plan, std::int64_t tokens) {
    if (tokens <= kInlineTokens) {
      for (std::int64_t i = 0; i < plan.writes(); ++i) plan.Write(i);
    } else {
      RunItems<&PagedPlan::Write>(context, plan, plan.writes());
    }
    RunItems<&PagedPlan::Attend>(context, plan, plan.items());
  }

  Simd simd_;
  AttentionSettings attention_;
};

class SwiGluKernel {
 public:
  explicit SwiGluKernel(const OrtKernelInfo*) : simd_(DetectSimd()) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] {
      Ort::KernelContext context(raw);
      const auto x = context.GetInput(0);
      const Shape shape = MatrixShape(x, "x");
      if (shape[1] % 2 != 0) {
        throw InvalidInput("x has " + std::to_string(shape[1]) +
                           " columns; accepted is an even number");
      }
      auto out = context.GetOutput(0, Shape{shape[0], shape[1] / 2});
      Rows rows{x.GetTensorData<float>(), out.GetTensorMutableData<float>(), shape[1] / 2, simd_};
      context.ParallelFor(
          [](void* data, std::size_t i) {
            const auto& r = *static_cast<const Rows*>(data);
            const auto row = static_cast<std::int64_t>(i);
            SwiGlu(r.x + row * 2 * r.width, 1, r.width, r.out + row * r.width, r.simd);
          },
          static_cast<std::size_t>(shape[0]), 0, &rows);
    });
  }

 private:
  struct Rows {
    const float* x;
    float* out;
    std::int64_t width;
    Simd simd;
  };

  Simd simd_;
};

struct PagedAttentionOp : OpBase<PagedAttentionOp, PagedAttentionKernel> {
  const char* GetName() const { return "PagedAttention"; }
  std::size_t GetInputTypeCount() const { return 5; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    return i == 0 ? kFloat : (i == 4 ? kInt64 : kInt32);
  }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
};

struct SwiGluOp : OpBase<SwiGluOp, SwiGluKernel> {
  const char* GetName() const { return "SwiGlu"; }
  std::size_t GetInputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return kFloat; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
};

}  // namespace

struct PagedOps::Ops {
  PagedAttentionOp attention;
  SwiGluOp glu;
};

PagedOps::PagedOps() : ops_(std::make_unique<Ops>()) {}
PagedOps::~PagedOps() = default;

void PagedOps::AddTo(Ort::CustomOpDomain& domain) {
  domain.Add(&ops_->attention);
  domain.Add(&ops_->glu);
}

}  // namespace orchid
