#include "ort/session_options.h"

#include "orchid/error.h"
#include "ort/memory.h"

namespace orchid {

Ort::SessionOptions MakeOrtOptions(const SessionOptions& options) {
  if (options.intra_op_threads < 1 || options.intra_op_threads > 1024) {
    throw LoadError("intra_op_threads is " + std::to_string(options.intra_op_threads) +
                    "; accepted is 1 to 1024");
  }
  Ort::SessionOptions ort;
  AddCustomOps(ort.GetUnowned());
  UseSharedMemory(ort);
  ort.SetIntraOpNumThreads(options.intra_op_threads);
  ort.SetInterOpNumThreads(1);
  ort.SetExecutionMode(ORT_SEQUENTIAL);
  ort.SetGraphOptimizationLevel(options.optimize ? ORT_ENABLE_ALL : ORT_DISABLE_ALL);
  // Row counts differ from run to run, so a memory plan of the last run never fits the next.
  ort.DisableMemPattern();
  ort.AddConfigEntry("session.intra_op.allow_spinning", options.spinning ? "1" : "0");
  ort.AddConfigEntry("session.inter_op.allow_spinning", "0");
  for (const auto& [key, value] : options.config) ort.AddConfigEntry(key.c_str(), value.c_str());
  if (!options.save_optimized_to.empty()) {
    ort.SetOptimizedModelFilePath(options.save_optimized_to.c_str());
  }
  return ort;
}

}  // namespace orchid
