#include "orchid/attention.h"

#include <algorithm>

#include "attention_kernels.h"

namespace orchid {
namespace {

std::int64_t BlocksOf(std::int64_t length) {
  return (length + kAttentionItemRows - 1) / kAttentionItemRows;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionArgs& args, Simd simd) : args_(args), wide_(false) {
#if defined(ORCHID_X86_KERNELS)
  wide_ = Allows(simd, Simd::kAvx2) && args.head_dim % 8 == 0 && args.head_dim <= kMaxWideHeadDim;
#else
  static_cast<void>(simd);
#endif
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    items_ += args.heads * BlocksOf(args.offsets[s + 1] - args.offsets[s]);
  }
}

void AttentionPlan::Run(std::int64_t item) const {
  // A linear walk: a batch holds few sequences, and one item is tens of microseconds of work.
  std::int64_t s = 0;
  std::int64_t blocks = 0;
  for (;; ++s) {
    blocks = BlocksOf(args_.offsets[s + 1] - args_.offsets[s]);
    if (item < args_.heads * blocks) break;
    item -= args_.heads * blocks;
  }
  AttentionItem work{};
  work.first_row = args_.offsets[s];
  work.length = args_.offsets[s + 1] - args_.offsets[s];
  work.head = item / blocks;
  work.query_begin = item % blocks * kAttentionItemRows;
  work.query_end = std::min(work.query_begin + kAttentionItemRows, work.length);
#if defined(ORCHID_X86_KERNELS)
  if (wide_) return AttendAvx2(args_, work);
#endif
  AttendPortable(args_, work);
}

void AttentionPlan::RunAll() const {
  for (std::int64_t i = 0; i < items_; ++i) Run(i);
}

}  // namespace orchid
