// Ends runs from another thread.
#pragma once

#include <memory>

namespace orchid {

// A one-way switch shared between the thread that runs and the threads that may end the run.
// Fully thread-safe. Fired before a run starts, it ends that run before any node executes; fired
// during a run, the run ends at the next graph node. One token may cover several runs.
class RunToken {
 public:
  RunToken();
  ~RunToken();
  RunToken(const RunToken&) = delete;
  RunToken& operator=(const RunToken&) = delete;

  void Terminate();
  bool terminated() const;

  struct State;  // defined next to ONNX Runtime
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace orchid
