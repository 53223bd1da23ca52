// Memory of attention keys and values: fixed blocks of 16 tokens with reference counts.
//
// The arena obeys and checks; which block goes to whom is decided by its caller, who keeps a ledger
// of his own. Whatever a caller asks is checked whole before anything changes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace orchid {

enum class KvType { kFloat16, kFloat32 };

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t blocks = 0;
  KvType type = KvType::kFloat16;
};

// One layer's keys and values. In a block, keys lie [kv_head][head_dim][16] and values
// [kv_head][16][head_dim], so that each block is a panel a matrix kernel reads as it lies.
struct KvLayer {
  unsigned char* keys = nullptr;  // of block 0; block b begins b * block_bytes further
  unsigned char* values = nullptr;
  std::size_t block_bytes = 0;
  KvType type = KvType::kFloat16;
};

struct KvStats {
  std::int64_t blocks = 0;
  std::int64_t used = 0;    // blocks with a reference
  std::int64_t shared = 0;  // blocks with several
  std::int64_t filled = 0;  // token slots of used blocks that hold a token
  std::int64_t zeroed = 0;  // blocks wiped since the start, because another owner got them
  std::size_t bytes = 0;    // of the whole arena
  bool huge_pages = false;  // the system was asked for huge pages and agreed
  // Share of used token slots that hold no token; 0 when nothing is used.
  double fragmentation() const;
  // Share of blocks that are used.
  double occupancy() const;
};

// One run's access, borrowed: sequence s has rows [offsets[s], offsets[s + 1]) of the run, which
// are its tokens from position past[s] on; token p of it lies in block table[s][p / 16].
struct KvAccess {
  const std::int32_t* offsets = nullptr;  // [sequences + 1]
  const std::int32_t* past = nullptr;     // [sequences]
  const std::int32_t* table = nullptr;    // [sequences, table_width]
  std::int64_t sequences = 0;
  std::int64_t table_width = 0;
};

class KvStep;

// Thread-safe. While a step is open every change is refused: one run at a time.
class KvArena : public std::enable_shared_from_this<KvArena> {
 public:
  static constexpr std::int64_t kBlockTokens = 16;

  // Throws InvalidInput for a shape without sense, EngineFault when there is no memory.
  static std::shared_ptr<KvArena> Make(const KvShape& shape);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvShape& shape() const { return shape_; }
  KvLayer layer(std::int64_t index) const;

  // The first reference to each of `blocks`, which must be free. A block that last belonged to
  // another owner is zeroed first, so no tenant's data outlives its ownership.
  void Acquire(const std::vector<std::int32_t>& blocks, std::int64_t owner);
  // One more reference to each of `blocks`, which must be used.
  void Retain(const std::vector<std::int32_t>& blocks);
  // One reference less; a block without references is free. Naming a block twice drops two.
  void Release(const std::vector<std::int32_t>& blocks);
  // Copies all layers of `from` into `to`, which must be used and have one reference.
  void Copy(std::int32_t from, std::int32_t to);

  KvStats stats() const;
  std::vector<std::int32_t> references() const;
  // Tokens that each block holds.
  std::vector<std::int32_t> filled() const;

 private:
  friend class KvStep;

  explicit KvArena(const KvShape& shape);
  void CheckIdle() const;
  void CheckBlock(std::int32_t block) const;
  void CheckUsed(std::int32_t block) const;
  void Wipe(std::int32_t block);
  void CheckAccess(const KvAccess& access);
  void CheckSequence(const KvAccess& access, std::int64_t s) const;
  void MarkWrites(const KvAccess& access, std::int64_t s);
  void CheckReads(const KvAccess& access, std::int64_t s) const;
  void SettleWrites(const KvAccess& access, bool complete);

  KvShape shape_;
  std::size_t plane_bytes_ = 0;  // keys (or values) of one layer of one block
  std::size_t mapped_bytes_ = 0;
  unsigned char* mapping_ = nullptr;
  unsigned char* memory_ = nullptr;
  bool huge_pages_ = false;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool stepping_ = false;
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> filled_;
  std::vector<std::int64_t> owners_;  // of the last reference; kNobody for a wiped block
  std::vector<std::int64_t> writer_;  // sequence that writes the block in the open step, or -1
  std::int64_t zeroed_ = 0;
};

// One run on an arena, from its check to its end. The tokens it wrote count when Commit was called
// before the end; otherwise those positions count as empty. Not thread-safe, except Find.
class KvStep {
 public:
  // Opens the step. Throws InvalidInput, saying what is wrong, unless
  //  - no other step is open on the arena and offsets, past lengths and table widths fit together,
  //  - every block that is read or written exists and is used,
  //  - past positions hold tokens,
  //  - blocks that are written have one reference and appear once in the whole step.
  KvStep(std::shared_ptr<KvArena> arena, const KvAccess& access);
  ~KvStep();
  KvStep(const KvStep&) = delete;
  KvStep& operator=(const KvStep&) = delete;

  // Names the open step in a graph's feeds; no other step of the process ever has the same.
  std::int64_t ticket() const { return ticket_; }
  void Commit() { complete_ = true; }

  // The open step of a ticket, or null. Thread-safe; valid until the step ends.
  static const KvStep* Find(std::int64_t ticket);

  // Time the graph's attention took, added up by its operators.
  void AddAttention(std::int64_t nanoseconds) const { attention_ns_ += nanoseconds; }
  std::int64_t attention_ns() const { return attention_ns_; }

  const KvArena& arena() const { return *arena_; }
  // The checked access, in memory of the step.
  const KvAccess& access() const { return access_; }

 private:
  std::shared_ptr<KvArena> arena_;
  std::vector<std::int32_t> offsets_;
  std::vector<std::int32_t> past_;
  std::vector<std::int32_t> table_;
  KvAccess access_;
  std::int64_t ticket_ = 0;
  bool complete_ = false;
  mutable std::atomic<std::int64_t> attention_ns_{0};
};

}  // namespace orchid
