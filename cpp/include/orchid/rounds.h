// Work in rounds: items of a round may run at the same time, and a round begins when the one before
// has ended. Whoever calls Participate helps until all is done; one caller is enough, and one that
// comes late or never does no harm. So many short rounds cost one hand-over to a pool of threads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>

namespace orchid {

class Rounds {
 public:
  // Appends a round of `items` items, of which `run` does one. Not while someone participates.
  void Add(std::int64_t items, std::function<void(std::int64_t)> run);

  // Takes part until the last round has ended. Thread-safe. What an item throws ends no round:
  // the first such error is thrown by Check.
  void Participate() noexcept;

  // Throws std::bad_alloc when an item threw, after all participants have come back.
  void Check() const;

  // Nanoseconds between the ends of round `first` - 1 and of `last`, as one participant saw them.
  std::int64_t Elapsed(std::size_t first, std::size_t last) const;

 private:
  // Threads begin far apart and come to each other's items when they have none left, so each walks
  // through memory in order.
  static constexpr std::size_t kShards = 4;
  static constexpr std::size_t kCacheLine = 64;

  struct alignas(kCacheLine) Shard {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  struct Round {
    std::function<void(std::int64_t)> run;
    std::int64_t items = 0;
    std::array<Shard, kShards> shards;
    alignas(kCacheLine) std::atomic<std::int64_t> done{0};
    std::int64_t ended_ns = 0;  // written by the first participant
  };

  std::int64_t Work(Round& round, std::size_t start) noexcept;

  std::deque<Round> rounds_;
  std::atomic<std::size_t> participants_{0};
  std::atomic<bool> failed_{false};
  std::int64_t began_ns_ = 0;
};

}  // namespace orchid
