// One run of a decoder graph on an arena.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "orchid/kv_arena.h"
#include "orchid/session.h"

namespace orchid {

struct StepResult {
  std::vector<Output> outputs;
  std::int64_t attention_ns = 0;  // of the run's time, what attention took
};

// Opens a step of `access` on `arena`, runs `session` and commits what was written. `feeds` holds
// the graph's other inputs; row_offsets, past_lengths, block_table and step are added here.
// Throws InvalidInput before anything is written, or what Session::Run throws; then the step's
// positions count as empty and the same step may be run again. Thread-safe.
StepResult RunStep(const Session& session, const std::shared_ptr<KvArena>& arena,
                   const KvAccess& access, std::vector<Feed> feeds,
                   const std::vector<Destination>& destinations, RunToken* token);

}  // namespace orchid
