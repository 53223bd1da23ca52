#include "ort/paged_ops.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "orchid/block_rest.h"
#include "orchid/cpu.h"
#include "orchid/kv_arena.h"
#include "orchid/paged_attention.h"
#include "orchid/rope.h"
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

bool SameInts(const Ort::ConstValue& value, const std::int32_t* expected, const Shape& shape) {
  if (ShapeOf(value) != shape) return false;
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return std::memcmp(value.GetTensorData<std::int32_t>(), expected, count * sizeof(std::int32_t)) ==
         0;
}

class PagedAttentionKernel {
 public:
  explicit PagedAttentionKernel(const OrtKernelInfo* raw) : simd_(DetectSimd()) {
    const Ort::ConstKernelInfo info(raw);
    heads_ = info.GetAttribute<std::int64_t>("num_heads");
    kv_heads_ = info.GetAttribute<std::int64_t>("kv_num_heads");
    layer_ = info.GetAttribute<std::int64_t>("layer");
    scale_ = FloatAttribute(info, "scale", 0.0F);
    theta_ = FloatAttribute(info, "rope_theta", 0.0F);
    if (heads_ < 1 || kv_heads_ < 1 || heads_ % kv_heads_ != 0 || layer_ < 0) {
      throw InvalidInput("num_heads " + std::to_string(heads_) + ", kv_num_heads " +
                         std::to_string(kv_heads_) + ", layer " + std::to_string(layer_) +
                         "; accepted are heads in multiples of kv heads, and a layer from 0");
    }
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  void Compute(Ort::KernelContext context) const {
    const auto qkv = context.GetInput(0);
    const Shape shape = MatrixShape(qkv, "qkv");
    const std::int64_t slices = heads_ + 2 * kv_heads_;
    if (shape[1] == 0 || shape[1] % slices != 0) {
      throw InvalidInput("qkv has " + std::to_string(shape[1]) +
                         " columns; accepted is a multiple of " + std::to_string(slices));
    }
    PagedArgs args;
    args.qkv = qkv.GetTensorData<float>();
    args.rows = shape[0];
    args.heads = heads_;
    args.kv_heads = kv_heads_;
    args.head_dim = shape[1] / slices;
    const KvStep& step = OpenStep(context, args);
    args.layer = step.arena().layer(layer_);
    args.scale = scale_ > 0.0F ? scale_ : 1.0F / std::sqrt(static_cast<float>(args.head_dim));
    std::shared_ptr<RopeTable> rope;
    if (theta_ > 0.0F) {
      rope = RopeTable::Shared(theta_, args.head_dim);
      rope->Ensure(LongestOf(args.access));
      args.rope = rope.get();
    }
    auto out = context.GetOutput(0, Shape{shape[0], heads_ * args.head_dim});
    args.out = out.GetTensorMutableData<float>();
    const auto start = std::chrono::steady_clock::now();
    Attend(context, PagedPlan(args, simd_), shape[0]);
    const auto taken = std::chrono::steady_clock::now() - start;
    step.AddAttention(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count());
  }

  // Finds the step the feeds name, and holds it against the graph and the other feeds.
  const KvStep& OpenStep(const Ort::KernelContext& context, PagedArgs& args) const {
    const auto ticket = context.GetInput(4);
    const KvStep* step = nullptr;
    if (ShapeOf(ticket) == Shape{1}) step = KvStep::Find(*ticket.GetTensorData<std::int64_t>());
    if (step == nullptr) throw InvalidInput("step names no open step of an arena");
    const KvAccess& access = step->access();
    if (!SameInts(context.GetInput(1), access.offsets, {access.sequences + 1}) ||
        !SameInts(context.GetInput(2), access.past, {access.sequences}) ||
        !SameInts(context.GetInput(3), access.table, {access.sequences, access.table_width})) {
      throw InvalidInput("row_offsets, past_lengths or block_table are not those of the step");
    }
    if (access.offsets[access.sequences] > args.rows) {
      throw InvalidInput("qkv has " + std::to_string(args.rows) + " rows; the step has " +
                         std::to_string(access.offsets[access.sequences]) + " tokens");
    }
    const KvShape& kv = step->arena().shape();
    if (kv.kv_heads != kv_heads_ || kv.head_dim != args.head_dim || layer_ >= kv.layers) {
      throw InvalidInput("the arena holds " + std::to_string(kv.layers) + " layers of " +
                         std::to_string(kv.kv_heads) + " heads of " + std::to_string(kv.head_dim) +
                         "; this graph needs layer " + std::to_string(layer_) + " of " +
                         std::to_string(kv_heads_) + " heads of " + std::to_string(args.head_dim));
    }
    args.access = access;
    return *step;
  }

  static std::int64_t LongestOf(const KvAccess& access) {
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < access.sequences; ++s) {
      const std::int64_t rows = access.offsets[s + 1] - access.offsets[s];
      longest = std::max(longest, access.past[s] + rows);
    }
    return longest;
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
  std::int64_t heads_ = 1;
  std::int64_t kv_heads_ = 1;
  std::int64_t layer_ = 0;
  float scale_ = 0.0F;
  float theta_ = 0.0F;
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

class AddBlockRestKernel {
 public:
  explicit AddBlockRestKernel(const OrtKernelInfo*) : simd_(DetectSimd()) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    return Guarded([&] { Compute(Ort::KernelContext(raw)); });
  }

 private:
  // An item of work: enough columns to be worth a thread, few enough rows to keep sums in cache.
  static constexpr std::int64_t kItemColumns = 384;
  static constexpr std::int64_t kItemRows = 64;

  struct Work {
    BlockRestArgs args;
    std::int64_t column_items;
    Simd simd;
  };

  static void Run(void* data, std::size_t index) {
    const auto& work = *static_cast<const Work*>(data);
    const auto i = static_cast<std::int64_t>(index);
    const std::int64_t row = i / work.column_items * kItemRows;
    const std::int64_t column = i % work.column_items * kItemColumns;
    AddBlockRest(work.args, row, std::min(row + kItemRows, work.args.rows), column,
                 std::min(column + kItemColumns, work.args.outputs), work.simd);
  }

  void Compute(Ort::KernelContext context) const {
    const auto x = context.GetInput(0);
    const auto product = context.GetInput(1);
    const auto rest = context.GetInput(2);
    const Shape inputs = MatrixShape(x, "x");
    const Shape shape = MatrixShape(product, "product");
    const Shape blocks = MatrixShape(rest, "rest");
    if (inputs[1] != blocks[0] * kRestBlock || shape != Shape{inputs[0], blocks[1]}) {
      throw InvalidInput("x, product and rest do not fit: accepted are [T, 32 B], [T, N], [B, N]");
    }
    std::vector<float> sums(static_cast<std::size_t>(inputs[0] * blocks[0]));
    SumBlocks(x.GetTensorData<float>(), inputs[0], blocks[0], sums.data(), simd_);
    Work work{};
    work.args.product = product.GetTensorData<float>();
    work.args.sums = sums.data();
    work.args.rest = rest.GetTensorData<float>();
    work.args.out = context.GetOutput(0, shape).GetTensorMutableData<float>();
    work.args.rows = inputs[0];
    work.args.blocks = blocks[0];
    work.args.outputs = blocks[1];
    work.column_items = (blocks[1] + kItemColumns - 1) / kItemColumns;
    work.simd = simd_;
    const std::int64_t items = work.column_items * ((inputs[0] + kItemRows - 1) / kItemRows);
    context.ParallelFor(&Run, static_cast<std::size_t>(items), 0, &work);
  }

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

struct AddBlockRestOp : OpBase<AddBlockRestOp, AddBlockRestKernel> {
  const char* GetName() const { return "AddBlockRest"; }
  std::size_t GetInputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return kFloat; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kFloat; }
};

}  // namespace

struct PagedOps::Ops {
  PagedAttentionOp attention;
  AddBlockRestOp rest;
  SwiGluOp glu;
};

PagedOps::PagedOps() : ops_(std::make_unique<Ops>()) {}
PagedOps::~PagedOps() = default;

void PagedOps::AddTo(Ort::CustomOpDomain& domain) {
  domain.Add(&ops_->attention);
  domain.Add(&ops_->glu);
  domain.Add(&ops_->rest);
}

}  // namespace orchid
