// One memory arena for all sessions of the process, returned to the system after each run.
#pragma once

#include "ort/api.h"

namespace orchid {

// Registers the arena with `env` and builds the trimmer. Called once, before any session.
void MakeArena(Ort::Env& env);

// Makes a session take its run-time memory from the arena, and its weights from outside it.
void UseArena(Ort::SessionOptions& options);

// Gives every arena region that no live tensor occupies back to the allocator. Thread-safe.
void TrimArena();

}  // namespace orchid
