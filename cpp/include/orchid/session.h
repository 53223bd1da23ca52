// One loaded model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "orchid/run_token.h"
#include "orchid/tensor.h"

namespace orchid {

struct SessionOptions {
  int intra_op_threads = 1;
  bool spinning = false;  // may pool threads busy-wait between runs
  bool optimize = true;   // false for a graph that has been optimised for this host already
  // ONNX Runtime session configuration entries, passed on unchanged after the engine's own.
  std::map<std::string, std::string> config;
  // Where to write the optimised graph while loading; empty for not at all.
  std::string save_optimized_to;
};

// One result: `owned` holds a C-contiguous tensor, unless it went into the caller's destination or
// is a string tensor, whose elements are `strings`.
struct Output {
  std::string name;
  DType dtype = DType::kOther;
  std::vector<std::int64_t> shape;
  std::unique_ptr<unsigned char[]> owned;
  std::vector<std::string> strings;
  int preallocated = -1;  // index of the destination, or -1
};

// Thread-safe after construction: Run may be called from several threads at once. Needs
// InitRuntime to have succeeded. Owns the ONNX Runtime session and its threads; outputs stay valid
// after the session is gone.
class Session {
 public:
  // Throws LoadError (file, graph, unsupported tensor types) with ONNX Runtime's reason.
  Session(const std::string& path, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::vector<TensorSpec>& inputs() const;
  const std::vector<TensorSpec>& outputs() const;
  // What the graph's metadata has under `key`; empty when it has nothing.
  std::string Metadata(const std::string& key) const;

  // Runs the graph once and returns every output, in declared order. Reads feeds in place; writes
  // outputs that have a destination in place. `token` may be null, and must outlive the call.
  // Throws InvalidInput, RunTerminated or EngineFault.
  std::vector<Output> Run(const std::vector<Feed>& feeds,
                          const std::vector<Destination>& destinations, RunToken* token) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orchid
