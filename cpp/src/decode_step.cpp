#include "orchid/decode_step.h"

#include <string>
#include <utility>

namespace orchid {
namespace {

Feed IntFeed(const char* name, DType dtype, std::vector<std::int64_t> shape, const void* data) {
  Feed feed;
  feed.name = name;
  feed.dtype = dtype;
  feed.dtype_text = Name(dtype);
  feed.shape = std::move(shape);
  feed.data = data;
  return feed;
}

}  // namespace

StepResult RunStep(const Session& session, const std::shared_ptr<KvArena>& arena,
                   const KvAccess& access, std::vector<Feed> feeds,
                   const std::vector<Destination>& destinations, RunToken* token) {
  KvStep step(arena, access);
  const KvAccess& checked = step.access();
  const std::int64_t ticket = step.ticket();
  feeds.push_back(IntFeed("row_offsets", DType::kInt32, {checked.sequences + 1}, checked.offsets));
  feeds.push_back(IntFeed("past_lengths", DType::kInt32, {checked.sequences}, checked.past));
  feeds.push_back(IntFeed("block_table", DType::kInt32, {checked.sequences, checked.table_width},
                          checked.table));
  feeds.push_back(IntFeed("step", DType::kInt64, {1}, &ticket));
  StepResult result;
  result.outputs = session.Run(feeds, destinations, token);
  result.attention_ns = step.attention_ns();
  step.Commit();
  return result;
}

}  // namespace orchid
