#include "orchid/run_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

namespace orchid {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Smaller requests go to the C library, which keeps them warm by itself.
constexpr std::size_t kSmallest = 32 * 1024;
// A reserved block that is larger than this is weights, whoever frees it.
constexpr std::size_t kLargestScratch = std::size_t{8} << 20;

enum class Kind { kSmall, kCached, kReserved };

// What the runs of one thread hold. Loads go on in other threads meanwhile, and are not in it.
struct Tally {
  std::size_t run = 0;  // a number of its own for each, 0 between runs
  std::size_t held = 0;
  std::size_t peak = 0;
};

thread_local Tally thread_tally;
std::atomic<std::size_t> last_run_number{0};

// Rounds up to an eighth of the next power of two, so that lengths close to each other share
// blocks.
std::size_t Capacity(std::size_t bytes) {
  std::size_t step = kPage;
  while (step * 16 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

void* Map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Advice only: a refusal leaves ordinary pages.
  if (bytes >= 2 * kHugePage) static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  return memory;
}

}  // namespace

// Lies in front of the memory handed out.
struct alignas(RunMemory::kAlignment) RunMemory::Block {
  std::size_t capacity;  // including this header
  std::size_t last_run;  // when it was last freed, or reserved
  Kind kind;
  std::size_t asked;     // what it was handed out for, whatever block there was
  std::size_t given_in;  // the run in which that was

  void* Give(std::size_t bytes) {
    Tally& tally = thread_tally;
    asked = bytes;
    given_in = tally.run;
    if (tally.run != 0) {
      tally.held += bytes;
      tally.peak = std::max(tally.peak, tally.held);
    }
    return payload();
  }
  void TakeBack() const {
    Tally& tally = thread_tally;
    // What was there before the run may end in it.
    if (tally.run != 0 && given_in == tally.run) tally.held -= asked;
  }

  void* payload() { return this + 1; }
  static Block* Of(void* pointer) { return static_cast<Block*>(pointer) - 1; }

  static Block* Make(std::size_t capacity, Kind kind) {
    void* memory = kind == Kind::kSmall ? std::aligned_alloc(kAlignment, capacity) : Map(capacity);
    return memory == nullptr ? nullptr : new (memory) Block{capacity, 0, kind, 0, 0};
  }

  static void Destroy(Block* block) {
    if (block->kind == Kind::kSmall) {
      std::free(block);
    } else {
      munmap(block, block->capacity);
    }
  }
};

RunMemory::~RunMemory() { Trim(); }

void* RunMemory::Allocate(std::size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() / 4) return nullptr;
  const std::size_t needed = bytes + sizeof(Block);
  if (needed < kSmallest) {
    const std::size_t rounded = (needed + kAlignment - 1) / kAlignment * kAlignment;
    Block* block = Block::Make(rounded, Kind::kSmall);
    return block == nullptr ? nullptr : block->Give(bytes);
  }
  const std::size_t capacity = Capacity(needed);
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* block = TakeCached(capacity, 2 * capacity);
  if (block == nullptr) block = Block::Make(capacity, Kind::kCached);
  if (block == nullptr) return nullptr;
  stats_.in_use += block->capacity;
  return block->Give(bytes);
}

void* RunMemory::Reserve(std::size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() / 4) return nullptr;
  const std::size_t capacity = (bytes + sizeof(Block) + kPage - 1) / kPage * kPage;
  if (capacity < kSmallest) return Allocate(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* block = TakeCached(capacity, capacity);
  if (block == nullptr) block = Block::Make(capacity, Kind::kReserved);
  if (block == nullptr) return nullptr;
  block->kind = Kind::kReserved;
  block->last_run = run_;
  stats_.reserved += capacity;
  return block->Give(bytes);
}

void RunMemory::Free(void* pointer) {
  if (pointer == nullptr) return;
  Block* block = Block::Of(pointer);
  block->TakeBack();
  if (block->kind == Kind::kSmall) return Block::Destroy(block);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (block->kind == Kind::kReserved) {
    stats_.reserved -= block->capacity;
    // Kernels reserve their scratch too; what a run frees again, the next one will want.
    const bool scratch = block->last_run == run_ && block->capacity <= kLargestScratch;
    if (!scratch) return Block::Destroy(block);
    block->kind = Kind::kCached;
  } else {
    stats_.in_use -= block->capacity;
  }
  stats_.cached += block->capacity;
  block->last_run = run_;
  cache_.push_back(block);
}

RunMemory::Block* RunMemory::TakeCached(std::size_t capacity, std::size_t largest) {
  // Best fit, last freed first.
  auto best = cache_.rend();
  for (auto it = cache_.rbegin(); it != cache_.rend(); ++it) {
    const std::size_t found = (*it)->capacity;
    if (found < capacity || found > largest) continue;
    if (best == cache_.rend() || found < (*best)->capacity) best = it;
    if (found == capacity) break;
  }
  if (best == cache_.rend()) return nullptr;
  Block* block = *best;
  cache_.erase(std::next(best).base());
  stats_.cached -= block->capacity;
  return block;
}

void RunMemory::BeginRun() {
  thread_tally.run = ++last_run_number;
  thread_tally.held = 0;
}

std::size_t RunMemory::TakePeak() { return std::exchange(thread_tally.peak, 0); }

void RunMemory::EndRun() {
  thread_tally.run = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++run_;
  std::size_t stale = 0;
  while (stale < cache_.size() && cache_[stale]->last_run + kKeptRuns < run_) ++stale;
  ReleaseOldest(stale);
}

void RunMemory::Trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ReleaseOldest(cache_.size());
}

void RunMemory::ReleaseOldest(std::size_t count) {
  const auto end = cache_.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto it = cache_.begin(); it != end; ++it) {
    stats_.cached -= (*it)->capacity;
    Block::Destroy(*it);
  }
  cache_.erase(cache_.begin(), end);
}

RunMemoryStats RunMemory::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

}  // namespace orchid
