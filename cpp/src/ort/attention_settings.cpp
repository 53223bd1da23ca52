#include "ort/attention_settings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "orchid/rope.h"
#include "ort/op_support.h"

namespace orchid {
namespace {

bool SameInts(const Ort::ConstValue& value, const std::int32_t* expected, const Shape& shape) {
  if (ShapeOf(value) != shape) return false;
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return std::memcmp(value.GetTensorData<std::int32_t>(), expected, count * sizeof(std::int32_t)) ==
         0;
}

std::int64_t LongestOf(const KvAccess& access) {
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < access.sequences; ++s) {
    const std::int64_t rows = access.offsets[s + 1] - access.offsets[s];
    longest = std::max(longest, access.past[s] + rows);
  }
  return longest;
}

}  // namespace

AttentionSettings::AttentionSettings(const Ort::ConstKernelInfo& info)
    : heads(info.GetAttribute<std::int64_t>("num_heads")),
      kv_heads(info.GetAttribute<std::int64_t>("kv_num_heads")),
      layer(info.GetAttribute<std::int64_t>("layer")),
      scale(OptionalAttribute<float>(info, "scale", 0.0F)),
      theta(OptionalAttribute<float>(info, "rope_theta", 0.0F)) {
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || layer < 0) {
    throw InvalidInput("num_heads " + std::to_string(heads) + ", kv_num_heads " +
                       std::to_string(kv_heads) + ", layer " + std::to_string(layer) +
                       "; accepted are heads in multiples of kv heads, and a layer from 0");
  }
}

const KvStep& AttentionSettings::Open(const Ort::KernelContext& context, std::size_t first,
                                      std::int64_t rows, std::int64_t head_dim,
                                      PagedArgs& args) const {
  const auto ticket = context.GetInput(first + 3);
  const KvStep* step = nullptr;
  if (ShapeOf(ticket) == Shape{1}) step = KvStep::Find(*ticket.GetTensorData<std::int64_t>());
  if (step == nullptr) throw InvalidInput("step names no open step of an arena");
  const KvAccess& access = step->access();
  if (!SameInts(context.GetInput(first), access.offsets, {access.sequences + 1}) ||
      !SameInts(context.GetInput(first + 1), access.past, {access.sequences}) ||
      !SameInts(context.GetInput(first + 2), access.table,
                {access.sequences, access.table_width})) {
    throw InvalidInput("row_offsets, past_lengths or block_table are not those of the step");
  }
  if (access.offsets[access.sequences] > rows) {
    throw InvalidInput("qkv has " + std::to_string(rows) + " rows; the step has " +
                       std::to_string(access.offsets[access.sequences]) + " tokens");
  }
  const KvShape& kv = step->arena().shape();
  if (kv.kv_heads != kv_heads || kv.head_dim != head_dim || layer >= kv.layers) {
    throw InvalidInput("the arena holds " + std::to_string(kv.layers) + " layers of " +
                       std::to_string(kv.kv_heads) + " heads of " + std::to_string(kv.head_dim) +
                       "; this graph needs layer " + std::to_string(layer) + " of " +
                       std::to_string(kv_heads) + " heads of " + std::to_string(head_dim));
  }
  args.rows = rows;
  args.access = access;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = head_dim;
  args.layer = step->arena().layer(layer);
  args.scale = scale > 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  if (theta > 0.0F) {
    // Shared tables live as long as the process.
    const std::shared_ptr<RopeTable> rope = RopeTable::Shared(theta, head_dim);
    rope->Ensure(LongestOf(access));
    args.rope = rope.get();
  }
  return *step;
}

}  // namespace orchid
