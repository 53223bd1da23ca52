// Memory of running models: kept between runs while runs use it, then given back.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace orchid {

struct RunMemoryStats {
  std::size_t in_use = 0;    // bytes handed out
  std::size_t cached = 0;    // bytes kept for the next run
  std::size_t reserved = 0;  // bytes of weights
};

// A caching allocator. Large blocks are mapped from the system one by one and kept after they are
// freed, so that a run finds warm pages; EndRun returns blocks that the last kKeptRuns runs left
// untouched. One large input is thus forgotten after some ordinary ones.
// Thread-safe. Memory handed out must be freed before the object dies.
class RunMemory {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kKeptRuns = 16;

  RunMemory() = default;
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  // At least `bytes`, aligned to kAlignment; null when the system has no more, or for 0 bytes.
  void* Allocate(std::size_t bytes);
  // The same for memory that may stay, like weights: exact. What is freed in the run that reserved
  // it was a kernel's scratch and is kept for the next, up to 8 MiB; the rest goes back at once.
  void* Reserve(std::size_t bytes);
  // Takes back what Allocate or Reserve returned; null is ignored.
  void Free(void* pointer);

  // Between the two the calling thread is in a run; the end gives back what the latest runs did
  // not touch.
  void BeginRun();
  void EndRun();
  // The most bytes that a run of the calling thread asked for at once, of those since it last
  // called this; what other threads take for a run is not in it.
  static std::size_t TakePeak();
  // Gives back everything that is not handed out.
  void Trim();

  RunMemoryStats stats() const;

 private:
  struct Block;

  // A cached block of `capacity` to `largest` bytes, if there is one; for a mutex that is held.
  // Twice the need is the most that is ever taken, so that small tensors spare large blocks.
  Block* TakeCached(std::size_t capacity, std::size_t largest);
  void ReleaseOldest(std::size_t count);

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Block*> cache_;  // oldest use first
  RunMemoryStats stats_;
  std::size_t run_ = 0;  // runs ended so far
};

}  // namespace orchid
