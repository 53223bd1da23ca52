#include "orchid/rope.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "orchid/error.h"

namespace orchid {

RopeTable::RopeTable(double theta, std::int64_t head_dim) : theta_(theta), dim_(head_dim) {
  if (!(theta > 1.0) || head_dim < 2 || head_dim % 2 != 0) {
    throw InvalidInput("rope has theta " + std::to_string(theta) + " and head size " +
                       std::to_string(head_dim) + "; accepted are theta > 1 and an even size");
  }
}

void RopeTable::Ensure(std::int64_t positions) {
  if (positions > kMaxPositions) {
    throw InvalidInput("position " + std::to_string(positions - 1) +
                       " is too far; accepted is below " + std::to_string(kMaxPositions));
  }
  const std::int64_t chunks = (positions + kChunk - 1) / kChunk;
  if (chunks == 0 ||
      chunks_[static_cast<std::size_t>(chunks - 1)].load(std::memory_order_acquire)) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto c = static_cast<std::int64_t>(owned_.size()); c < chunks; ++c) {
    owned_.emplace_back(new float[static_cast<std::size_t>(kChunk * dim_)]);
    float* row = owned_.back().get();
    for (std::int64_t p = c * kChunk; p < (c + 1) * kChunk; ++p, row += dim_) {
      for (std::int64_t i = 0; i < dim_ / 2; ++i) {
        const double power = -2.0 * static_cast<double>(i) / static_cast<double>(dim_);
        const double angle = static_cast<double>(p) * std::pow(theta_, power);
        row[i] = static_cast<float>(std::cos(angle));
        row[dim_ / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }
    chunks_[static_cast<std::size_t>(c)].store(owned_.back().get(), std::memory_order_release);
  }
}

const float* RopeTable::Row(std::int64_t position) const {
  const auto chunk = static_cast<std::size_t>(position / kChunk);
  return chunks_[chunk].load(std::memory_order_acquire) + position % kChunk * dim_;
}

void RopeTable::Rotate(const float* x, std::int64_t position, float* out) const {
  const std::int64_t half = dim_ / 2;
  const float* cosine = Row(position);
  const float* sine = cosine + half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    out[i] = low * cosine[i] - high * sine[i];
    out[half + i] = high * cosine[i] + low * sine[i];
  }
}

std::shared_ptr<RopeTable> RopeTable::Shared(double theta, std::int64_t head_dim) {
  static std::mutex mutex;
  static auto* tables = new std::map<std::pair<double, std::int64_t>, std::shared_ptr<RopeTable>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<RopeTable>& table = (*tables)[{theta, head_dim}];
  if (table == nullptr) table = std::make_shared<RopeTable>(theta, head_dim);
  return table;
}

}  // namespace orchid
