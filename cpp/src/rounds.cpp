#include "orchid/rounds.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace orchid {
namespace {

// Looks at a counter before the core is offered to others: some microseconds.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::int64_t Now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

void Rounds::Add(std::int64_t items, std::function<void(std::int64_t)> run) {
  Round& round = rounds_.emplace_back();
  round.run = std::move(run);
  round.items = items;
  for (std::size_t s = 0; s < kShards; ++s) {
    const auto shard = static_cast<std::int64_t>(s);
    constexpr auto kCount = static_cast<std::int64_t>(kShards);
    round.shards[s].next.store(items * shard / kCount, std::memory_order_relaxed);
    round.shards[s].end = items * (shard + 1) / kCount;
  }
}

std::int64_t Rounds::Work(Round& round, std::size_t start) noexcept {
  std::int64_t ran = 0;
  for (std::size_t s = 0; s < kShards; ++s) {
    Shard& shard = round.shards[(start + s) % kShards];
    while (shard.next.load(std::memory_order_relaxed) < shard.end) {
      const std::int64_t item = shard.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= shard.end) break;
      try {
        round.run(item);
      } catch (...) {
        failed_.store(true, std::memory_order_relaxed);
      }
      ++ran;
    }
  }
  return ran;
}

void Rounds::Participate() noexcept {
  const std::size_t number = participants_.fetch_add(1, std::memory_order_relaxed);
  // The second thread begins in the middle, the third and fourth between.
  constexpr std::array<std::size_t, kShards> kStarts{0, 2, 1, 3};
  const std::size_t start = kStarts[number % kShards];
  if (number == 0) began_ns_ = Now();
  for (Round& round : rounds_) {
    const std::int64_t ran = Work(round, start);
    if (ran > 0) round.done.fetch_add(ran, std::memory_order_acq_rel);
    for (int spins = 0; round.done.load(std::memory_order_acquire) < round.items; ++spins) {
      if (spins < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (number == 0) round.ended_ns = Now();
  }
}

void Rounds::Check() const {
  if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

std::int64_t Rounds::Elapsed(std::size_t first, std::size_t last) const {
  const std::int64_t from = first == 0 ? began_ns_ : rounds_[first - 1].ended_ns;
  return rounds_[last].ended_ns - from;
}

}  // namespace orchid
