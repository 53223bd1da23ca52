// Rotary position embedding (Su et al. 2021), the half-split form of LLaMA checkpoints.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace orchid {

// Cosines and sines of positions, computed once and kept. Thread-safe.
class RopeTable {
 public:
  static constexpr std::int64_t kMaxPositions = 1 << 20;

  // Throws InvalidInput unless theta > 1 and head_dim is even and positive.
  RopeTable(double theta, std::int64_t head_dim);

  // Makes Row usable for positions below `positions`; throws InvalidInput beyond kMaxPositions.
  void Ensure(std::int64_t positions);

  // [cos of head_dim / 2 angles | sin of the same]; only for positions ensured before.
  const float* Row(std::int64_t position) const;

  // out = x rotated to `position`; head_dim values each, which may be the same memory.
  void Rotate(const float* x, std::int64_t position, float* out) const;

  // The table of a theta and head size, one in the process.
  static std::shared_ptr<RopeTable> Shared(double theta, std::int64_t head_dim);

 private:
  static constexpr std::int64_t kChunk = 256;  // positions made at a time

  double theta_;
  std::int64_t dim_;
  std::array<std::atomic<const float*>, kMaxPositions / kChunk> chunks_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<float[]>> owned_;  // guarded by mutex_
};

}  // namespace orchid
