// The two implementations behind AttentionPlan. Thread-safe.
#pragma once

#include <cstdint>

#include "orchid/attention.h"

namespace orchid {

// Query rows [query_begin, query_end) of one head of one sequence; rows count from the sequence's
// first row, `first_row`, and `length` is the sequence's number of rows.
struct AttentionItem {
  std::int64_t first_row;
  std::int64_t length;
  std::int64_t head;
  std::int64_t query_begin;
  std::int64_t query_end;
};

void AttendPortable(const AttentionArgs& args, const AttentionItem& item);

// Preconditions: the CPU has AVX2 and FMA; head_dim is a multiple of 8, at most kMaxWideHeadDim.
constexpr std::int64_t kMaxWideHeadDim = 256;
void AttendAvx2(const AttentionArgs& args, const AttentionItem& item);

// Column of `args.bias` for distance key - query.
inline std::int64_t BiasColumn(std::int64_t distance, std::int64_t reach) {
  const std::int64_t last = 2 * reach - 2;
  const std::int64_t column = distance + reach - 1;
  return column < 0 ? 0 : (column > last ? last : column);
}

}  // namespace orchid
