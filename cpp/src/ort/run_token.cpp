#include "orchid/run_token.h"

#include <algorithm>

#include "ort/run_token_state.h"

namespace orchid {

RunToken::RunToken() : state_(std::make_unique<State>()) {}
RunToken::~RunToken() = default;

void RunToken::Terminate() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->fired = true;
  for (Ort::RunOptions* options : state_->active) options->SetTerminate();
}

bool RunToken::terminated() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->fired;
}

TokenAttachment::TokenAttachment(RunToken* token, Ort::RunOptions& options)
    : token_(token), options_(&options) {
  if (token_ == nullptr) return;
  RunToken::State& state = token_->state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.fired) options.SetTerminate();
  state.active.push_back(options_);
}

TokenAttachment::~TokenAttachment() {
  if (token_ == nullptr) return;
  RunToken::State& state = token_->state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.active.erase(std::find(state.active.begin(), state.active.end(), options_));
}

}  // namespace orchid
