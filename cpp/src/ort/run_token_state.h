#pragma once

#include <mutex>
#include <vector>

#include "orchid/run_token.h"
#include "ort/api.h"

namespace orchid {

struct RunToken::State {
  std::mutex mutex;
  bool fired = false;                    // guarded by mutex
  std::vector<Ort::RunOptions*> active;  // guarded by mutex
};

// Ties one run's options to a token for as long as the run lasts.
class TokenAttachment {
 public:
  TokenAttachment(RunToken* token, Ort::RunOptions& options);
  ~TokenAttachment();
  TokenAttachment(const TokenAttachment&) = delete;
  TokenAttachment& operator=(const TokenAttachment&) = delete;

 private:
  RunToken* token_;
  Ort::RunOptions* options_;
};

}  // namespace orchid
