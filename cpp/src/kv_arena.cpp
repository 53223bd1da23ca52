#include "orchid/kv_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "orchid/error.h"
#include "orchid/row_offsets.h"

namespace orchid {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxDimension = 1 << 20;

std::int64_t BlocksFor(std::int64_t tokens) {
  return (tokens + KvArena::kBlockTokens - 1) / KvArena::kBlockTokens;
}

// Tokens of block `index` of a sequence of `tokens` tokens.
std::int64_t TokensIn(std::int64_t tokens, std::int64_t index) {
  const std::int64_t rest = tokens - index * KvArena::kBlockTokens;
  return std::clamp<std::int64_t>(rest, 0, KvArena::kBlockTokens);
}

std::int64_t RowsOf(const KvAccess& access, std::int64_t s) {
  return access.offsets[s + 1] - access.offsets[s];
}

void CheckDimension(const char* name, std::int64_t size) {
  if (size < 1 || size > kMaxDimension) {
    throw InvalidInput("the arena's " + std::string(name) + " is " + std::to_string(size) +
                       "; accepted is 1 to " + std::to_string(kMaxDimension));
  }
}

std::string BlockText(std::int32_t block) { return "block " + std::to_string(block); }

std::string SequenceText(std::int64_t s) { return "sequence " + std::to_string(s); }

std::mutex g_steps_mutex;
std::int64_t g_last_ticket = 0;

// Leaked on purpose, like all that runs at exit may still use.
std::unordered_map<std::int64_t, const KvStep*>& Steps() {
  static auto* steps = new std::unordered_map<std::int64_t, const KvStep*>;
  return *steps;
}

}  // namespace

double KvStats::fragmentation() const {
  if (used == 0) return 0.0;
  return 1.0 - static_cast<double>(filled) / static_cast<double>(used * KvArena::kBlockTokens);
}

double KvStats::occupancy() const {
  return blocks == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(blocks);
}

std::shared_ptr<KvArena> KvArena::Make(const KvShape& shape) {
  CheckDimension("layers", shape.layers);
  CheckDimension("kv_heads", shape.kv_heads);
  CheckDimension("head_dim", shape.head_dim);
  CheckDimension("blocks", shape.blocks);
  return std::shared_ptr<KvArena>(new KvArena(shape));
}

KvArena::KvArena(const KvShape& shape) : shape_(shape) {
  const std::size_t item = shape.type == KvType::kFloat16 ? 2 : 4;
  // In floating point first: the product of four accepted dimensions may not fit an integer.
  const double wanted = 2.0 * static_cast<double>(item * kBlockTokens) *
                        static_cast<double>(shape.layers) * static_cast<double>(shape.kv_heads) *
                        static_cast<double>(shape.head_dim) * static_cast<double>(shape.blocks);
  if (wanted > 1e15) throw EngineFault("out of memory: the arena would need over 1 PB");
  plane_bytes_ = item * static_cast<std::size_t>(kBlockTokens * shape.kv_heads * shape.head_dim);
  const std::size_t bytes =
      2 * plane_bytes_ * static_cast<std::size_t>(shape.layers * shape.blocks);
  mapped_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* mapping =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw EngineFault("out of memory: the arena needs " + std::to_string(bytes) + " bytes");
  }
  mapping_ = static_cast<unsigned char*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  memory_ = mapping_ + (kHugePage - address % kHugePage) % kHugePage;
  huge_pages_ = madvise(memory_, mapped_bytes_ - kHugePage, MADV_HUGEPAGE) == 0;
  const auto blocks = static_cast<std::size_t>(shape.blocks);
  references_.assign(blocks, 0);
  filled_.assign(blocks, 0);
  owners_.assign(blocks, kNobody);
  writer_.assign(blocks, -1);
}

KvArena::~KvArena() { munmap(mapping_, mapped_bytes_); }

KvLayer KvArena::layer(std::int64_t index) const {
  KvLayer layer;
  layer.type = shape_.type;
  layer.block_bytes = 2 * plane_bytes_;
  layer.keys = memory_ + static_cast<std::size_t>(index * shape_.blocks) * layer.block_bytes;
  layer.values = layer.keys + plane_bytes_;
  return layer;
}

void KvArena::CheckIdle() const {
  if (stepping_) throw InvalidInput("the arena is in a step; it takes changes between steps only");
}

void KvArena::CheckBlock(std::int32_t block) const {
  if (block < 0 || block >= shape_.blocks) {
    throw InvalidInput(BlockText(block) + " does not exist; the arena has " +
                       std::to_string(shape_.blocks) + " blocks");
  }
}

void KvArena::CheckUsed(std::int32_t block) const {
  CheckBlock(block);
  if (references_[static_cast<std::size_t>(block)] == 0) {
    throw InvalidInput(BlockText(block) + " is free");
  }
}

void KvArena::Wipe(std::int32_t block) {
  for (std::int64_t l = 0; l < shape_.layers; ++l) {
    const KvLayer at = layer(l);
    std::memset(at.keys + static_cast<std::size_t>(block) * at.block_bytes, 0, at.block_bytes);
  }
  ++zeroed_;
}

void KvArena::Acquire(const std::vector<std::int32_t>& blocks, std::int64_t owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CheckIdle();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CheckBlock(blocks[i]);
    if (references_[static_cast<std::size_t>(blocks[i])] != 0) {
      throw InvalidInput(BlockText(blocks[i]) + " is not free");
    }
  }
  std::vector<std::int32_t> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) throw InvalidInput(BlockText(*twice) + " is asked for twice");
  for (const std::int32_t block : blocks) {
    const auto i = static_cast<std::size_t>(block);
    if (owners_[i] != owner && owners_[i] != kNobody) Wipe(block);
    owners_[i] = owner;
    references_[i] = 1;
    filled_[i] = 0;
  }
}

void KvArena::Retain(const std::vector<std::int32_t>& blocks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CheckIdle();
  for (const std::int32_t block : blocks) CheckUsed(block);
  for (const std::int32_t block : blocks) ++references_[static_cast<std::size_t>(block)];
}

void KvArena::Release(const std::vector<std::int32_t>& blocks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CheckIdle();
  std::vector<std::int32_t> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  for (auto first = sorted.begin(); first != sorted.end();) {
    const auto end = std::upper_bound(first, sorted.end(), *first);
    CheckUsed(*first);
    if (references_[static_cast<std::size_t>(*first)] < end - first) {
      throw InvalidInput(BlockText(*first) + " is released more often than it is held");
    }
    first = end;
  }
  for (const std::int32_t block : blocks) {
    const auto i = static_cast<std::size_t>(block);
    if (--references_[i] == 0) filled_[i] = 0;
  }
}

void KvArena::Copy(std::int32_t from, std::int32_t to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CheckIdle();
  CheckUsed(from);
  CheckUsed(to);
  const auto target = static_cast<std::size_t>(to);
  const auto source = static_cast<std::size_t>(from);
  if (from == to || references_[target] != 1) {
    throw InvalidInput(BlockText(to) + " cannot be written: it is the source or has " +
                       std::to_string(references_[target]) + " references");
  }
  if (owners_[source] != owners_[target]) {
    throw InvalidInput(BlockText(from) + " and " + BlockText(to) + " belong to different owners");
  }
  for (std::int64_t l = 0; l < shape_.layers; ++l) {
    const KvLayer at = layer(l);
    std::memcpy(at.keys + target * at.block_bytes, at.keys + source * at.block_bytes,
                at.block_bytes);
  }
  filled_[target] = filled_[source];
}

KvStats KvArena::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  KvStats stats;
  stats.blocks = shape_.blocks;
  stats.zeroed = zeroed_;
  stats.bytes = 2 * plane_bytes_ * static_cast<std::size_t>(shape_.layers * shape_.blocks);
  stats.huge_pages = huge_pages_;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    stats.used += references_[i] > 0 ? 1 : 0;
    stats.shared += references_[i] > 1 ? 1 : 0;
    stats.filled += filled_[i];
  }
  return stats;
}

std::vector<std::int32_t> KvArena::references() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return references_;
}

std::vector<std::int32_t> KvArena::filled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return filled_;
}

void KvArena::CheckSequence(const KvAccess& access, std::int64_t s) const {
  const std::int64_t past = access.past[s];
  if (past < 0) {
    throw InvalidInput(SequenceText(s) + " has past length " + std::to_string(past) +
                       "; accepted is at least 0");
  }
  const std::int64_t tokens = past + RowsOf(access, s);
  if (tokens > access.table_width * kBlockTokens) {
    throw InvalidInput(SequenceText(s) + " has " + std::to_string(tokens) +
                       " tokens; its block table holds " +
                       std::to_string(access.table_width * kBlockTokens));
  }
  const std::int32_t* table = access.table + s * access.table_width;
  for (std::int64_t j = 0; j < BlocksFor(tokens); ++j) {
    CheckUsed(table[j]);
    if (filled_[static_cast<std::size_t>(table[j])] < TokensIn(past, j)) {
      throw InvalidInput(SequenceText(s) + " reads positions of " + BlockText(table[j]) +
                         " that hold no token");
    }
  }
}

void KvArena::MarkWrites(const KvAccess& access, std::int64_t s) {
  const std::int32_t* table = access.table + s * access.table_width;
  const std::int64_t past = access.past[s];
  for (std::int64_t j = past / kBlockTokens; j < BlocksFor(past + RowsOf(access, s)); ++j) {
    const auto block = static_cast<std::size_t>(table[j]);
    if (references_[block] != 1) {
      throw InvalidInput(SequenceText(s) + " writes " + BlockText(table[j]) + ", which has " +
                         std::to_string(references_[block]) + " references");
    }
    if (writer_[block] >= 0) {
      throw InvalidInput(SequenceText(s) + " writes " + BlockText(table[j]) + ", which " +
                         SequenceText(writer_[block]) + " writes too");
    }
    writer_[block] = s;
  }
}

void KvArena::CheckReads(const KvAccess& access, std::int64_t s) const {
  const std::int32_t* table = access.table + s * access.table_width;
  for (std::int64_t j = 0; j < access.past[s] / kBlockTokens; ++j) {
    if (writer_[static_cast<std::size_t>(table[j])] >= 0) {
      throw InvalidInput(SequenceText(s) + " reads " + BlockText(table[j]) + ", which " +
                         SequenceText(writer_[static_cast<std::size_t>(table[j])]) + " writes");
    }
  }
}

void KvArena::CheckAccess(const KvAccess& access) {
  for (std::int64_t s = 0; s < access.sequences; ++s) CheckSequence(access, s);
  try {
    for (std::int64_t s = 0; s < access.sequences; ++s) MarkWrites(access, s);
    for (std::int64_t s = 0; s < access.sequences; ++s) CheckReads(access, s);
  } catch (const InvalidInput&) {
    std::fill(writer_.begin(), writer_.end(), -1);
    throw;
  }
  std::fill(writer_.begin(), writer_.end(), -1);
}

void KvArena::SettleWrites(const KvAccess& access, bool complete) {
  for (std::int64_t s = 0; s < access.sequences; ++s) {
    const std::int32_t* table = access.table + s * access.table_width;
    const std::int64_t past = access.past[s];
    const std::int64_t tokens = past + RowsOf(access, s);
    for (std::int64_t j = past / kBlockTokens; j < BlocksFor(tokens); ++j) {
      filled_[static_cast<std::size_t>(table[j])] =
          static_cast<std::int32_t>(TokensIn(complete ? tokens : past, j));
    }
  }
}

KvStep::KvStep(std::shared_ptr<KvArena> arena, const KvAccess& access) : arena_(std::move(arena)) {
  if (access.sequences < 1 || access.table_width < 1) {
    throw InvalidInput("a step has " + std::to_string(access.sequences) + " sequences and " +
                       std::to_string(access.table_width) +
                       " table columns; accepted is at least one of each");
  }
  const auto sequences = static_cast<std::size_t>(access.sequences);
  const auto entries = sequences * static_cast<std::size_t>(access.table_width);
  CheckRowOffsets(access.offsets, sequences + 1, access.offsets[sequences]);
  offsets_.assign(access.offsets, access.offsets + sequences + 1);
  past_.assign(access.past, access.past + sequences);
  table_.assign(access.table, access.table + entries);
  access_ =
      KvAccess{offsets_.data(), past_.data(), table_.data(), access.sequences, access.table_width};
  {
    const std::lock_guard<std::mutex> lock(arena_->mutex_);
    arena_->CheckIdle();
    arena_->CheckAccess(access_);
    arena_->stepping_ = true;
  }
  const std::lock_guard<std::mutex> lock(g_steps_mutex);
  ticket_ = ++g_last_ticket;
  Steps().emplace(ticket_, this);
}

KvStep::~KvStep() {
  {
    const std::lock_guard<std::mutex> lock(g_steps_mutex);
    Steps().erase(ticket_);
  }
  const std::lock_guard<std::mutex> lock(arena_->mutex_);
  arena_->SettleWrites(access_, complete_);
  arena_->stepping_ = false;
}

const KvStep* KvStep::Find(std::int64_t ticket) {
  const std::lock_guard<std::mutex> lock(g_steps_mutex);
  const auto found = Steps().find(ticket);
  return found == Steps().end() ? nullptr : found->second;
}

}  // namespace orchid
