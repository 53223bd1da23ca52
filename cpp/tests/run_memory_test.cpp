#include "orchid/run_memory.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace orchid {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlocksAreAlignedWritableAndApart) {
  RunMemory memory;
  std::mt19937 random(1);
  std::vector<std::pair<unsigned char*, std::size_t>> held;
  for (int i = 0; i < 400; ++i) {
    if (held.size() > 20) {
      auto& [pointer, bytes] = held[random() % held.size()];
      CHECK(pointer[0] == bytes % 251 && pointer[bytes - 1] == bytes % 251);
      memory.Free(pointer);
      pointer = held.back().first;
      bytes = held.back().second;
      held.pop_back();
    }
    const std::size_t bytes = 1 + random() % (i % 3 == 0 ? kMiB : 5000);
    auto* pointer =
        static_cast<unsigned char*>(i % 7 == 0 ? memory.Reserve(bytes) : memory.Allocate(bytes));
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % RunMemory::kAlignment == 0);
    std::memset(pointer, static_cast<int>(bytes % 251), bytes);
    held.emplace_back(pointer, bytes);
    if (i % 10 == 0) memory.EndRun();
  }
  for (const auto& [pointer, bytes] : held) memory.Free(pointer);
  CHECK(memory.stats().in_use == 0 && memory.stats().reserved == 0);
  memory.Trim();
  CHECK(memory.stats().cached == 0);
}

TEST(ARunReusesWhatTheLastOneFreed) {
  RunMemory memory;
  void* first = memory.Allocate(3 * kMiB);
  memory.Free(first);
  memory.EndRun();
  CHECK(memory.stats().cached >= 3 * kMiB);
  CHECK(memory.Allocate(2 * kMiB) == first);
  CHECK(memory.stats().cached == 0);
  memory.Free(first);
  void* small = memory.Allocate(kMiB / 2);
  CHECK(small != first);
  memory.Free(small);
}

TEST(ALargeRunIsForgottenAfterOrdinaryOnes) {
  RunMemory memory;
  memory.Free(memory.Allocate(64 * kMiB));
  std::size_t runs = 0;
  while (memory.stats().cached > 2 * kMiB && runs < 1000) {
    memory.Free(memory.Allocate(kMiB));
    memory.EndRun();
    ++runs;
  }
  CHECK(runs == RunMemory::kKeptRuns + 1);
  CHECK(memory.stats().cached >= kMiB);
}

TEST(WeightsAreNeverCached) {
  RunMemory memory;
  void* weights = memory.Reserve(5 * kMiB);
  CHECK(memory.stats().reserved >= 5 * kMiB && memory.stats().in_use == 0);
  memory.EndRun();
  memory.Free(weights);
  CHECK(memory.stats().reserved == 0 && memory.stats().cached == 0);
}

TEST(ScratchThatARunReservedAndFreedIsKeptForTheNext) {
  RunMemory memory;
  void* scratch = memory.Reserve(kMiB);
  memory.Free(scratch);
  CHECK(memory.stats().reserved == 0 && memory.stats().cached >= kMiB);
  memory.EndRun();
  CHECK(memory.Reserve(kMiB) == scratch);
  CHECK(memory.stats().reserved >= kMiB && memory.stats().cached == 0);
  memory.Free(scratch);
  // Weights are exact: they never sit in a larger block.
  void* weights = memory.Reserve(kMiB / 2 + 1);
  CHECK(weights != scratch);
  memory.Free(weights);
  memory.Free(memory.Reserve(16 * kMiB));
  CHECK(memory.stats().cached < 2 * kMiB);
  memory.Trim();
  CHECK(memory.stats().cached == 0);
}

TEST(ThePeakOfARunIsWhatItHeldAtOnce) {
  RunMemory memory;
  RunMemory::TakePeak();
  void* before = memory.Allocate(kMiB);
  CHECK(RunMemory::TakePeak() == 0);
  memory.BeginRun();
  void* first = memory.Allocate(2 * kMiB);
  memory.Free(before);
  memory.Free(memory.Reserve(3 * kMiB));
  void* small = memory.Allocate(100);
  memory.Free(first);
  memory.Free(memory.Allocate(kMiB));
  memory.Free(small);
  memory.EndRun();
  // What was there before and ended in the run was never the run's.
  CHECK(RunMemory::TakePeak() == 5 * kMiB);
  CHECK(RunMemory::TakePeak() == 0);
  // A warm block that is larger than what is asked for counts as what was asked.
  memory.BeginRun();
  memory.Free(memory.Allocate(kMiB - kMiB / 4));
  memory.EndRun();
  CHECK(RunMemory::TakePeak() == kMiB - kMiB / 4);
}

TEST(ThePeakIsThatOfTheLargestRunOfTheThread) {
  RunMemory memory;
  RunMemory::TakePeak();
  for (const std::size_t size : {kMiB, 3 * kMiB, kMiB / 2}) {
    memory.BeginRun();
    memory.Free(memory.Allocate(size));
    memory.EndRun();
  }
  std::thread other([&memory] {
    memory.BeginRun();
    memory.Free(memory.Allocate(9 * kMiB));
    memory.EndRun();
    CHECK(RunMemory::TakePeak() == 9 * kMiB);
  });
  other.join();
  CHECK(RunMemory::TakePeak() == 3 * kMiB);
}

TEST(ImpossibleRequestsAreNull) {
  RunMemory memory;
  CHECK(memory.Allocate(0) == nullptr);
  CHECK(memory.Allocate(std::numeric_limits<std::size_t>::max()) == nullptr);
  CHECK(memory.Allocate(std::numeric_limits<std::size_t>::max() / 8) == nullptr);
  CHECK(memory.Reserve(std::numeric_limits<std::size_t>::max() - 64) == nullptr);
  memory.Free(nullptr);
}

TEST(ThreadsShareIt) {
  RunMemory memory;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (unsigned i = 0; i < 300; ++i) {
        const std::size_t bytes = 1000 + (i * 7919 + t * 104729) % (2 * kMiB);
        auto* pointer = static_cast<unsigned char*>(memory.Allocate(bytes));
        pointer[0] = pointer[bytes - 1] = static_cast<unsigned char>(t);
        CHECK(pointer[0] == t);
        memory.Free(pointer);
        memory.EndRun();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory.stats().in_use == 0);
}

}  // namespace
}  // namespace orchid
