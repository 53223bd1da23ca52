#include "orchid/rounds.h"

#include <atomic>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace orchid {
namespace {

// Runs `rounds` on `threads` threads, the calling one among them.
void RunOn(Rounds& rounds, int threads) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&] { rounds.Participate(); });
  rounds.Participate();
  for (std::thread& other : others) other.join();
}

TEST(EveryItemOfEveryRoundRunsOnceAndInOrderOfRounds) {
  for (const int threads : {1, 2, 3, 7}) {
    constexpr std::int64_t kItems = 41;
    Rounds rounds;
    std::atomic<int> wrong{0};
    std::vector<std::atomic<int>> ran(4);
    std::vector<std::vector<std::atomic<int>>> times;
    for (std::size_t r = 0; r < ran.size(); ++r) times.emplace_back(kItems);
    for (std::size_t r = 0; r < ran.size(); ++r) {
      // The second round is empty.
      rounds.Add(r == 1 ? 0 : kItems, [&, r](std::int64_t item) {
        if (r > 0 && ran[r == 2 ? 0 : r - 1].load() != kItems) wrong.fetch_add(1);
        times[r][static_cast<std::size_t>(item)].fetch_add(1);
        ran[r].fetch_add(1);
      });
    }
    RunOn(rounds, threads);
    rounds.Check();
    CHECK(wrong.load() == 0);
    for (std::size_t r = 0; r < ran.size(); ++r) {
      for (const std::atomic<int>& count : times[r]) CHECK(count.load() == (r == 1 ? 0 : 1));
    }
    CHECK(rounds.Elapsed(0, 3) >= rounds.Elapsed(1, 2));
  }
}

TEST(OneWhoComesWhenAllIsDoneLeavesAtOnce) {
  Rounds rounds;
  int ran = 0;
  rounds.Add(3, [&](std::int64_t) { ++ran; });
  rounds.Participate();
  rounds.Participate();
  CHECK(ran == 3);
}

TEST(AnItemThatThrowsEndsNoRoundAndIsReported) {
  Rounds rounds;
  std::atomic<int> ran{0};
  rounds.Add(8, [&](std::int64_t item) {
    if (item == 5) throw std::bad_alloc();
    ran.fetch_add(1);
  });
  rounds.Add(2, [&](std::int64_t) { ran.fetch_add(1); });
  RunOn(rounds, 2);
  CHECK(ran.load() == 9);
  CHECK(test::Throws<std::bad_alloc>([&] { rounds.Check(); }, ""));
}

}  // namespace
}  // namespace orchid
