// The kernels behind PagedPlan: the same contract, for AVX-512, for AVX2 with FMA and F16C, and
// portable.
#pragma once

#include <cstdint>

#include "orchid/kv_arena.h"

namespace orchid {

// Keys of one online-softmax step.
constexpr std::int64_t kPagedKeyTile = 128;

// Rows of queries of one kv head against keys [begin, end) of one sequence.
struct PagedItem {
  const float* queries;  // [rows, head_dim], rotated and scaled
  std::int64_t rows;
  std::int64_t group;           // row r belongs to query token r / group
  std::int64_t first_position;  // of query token 0; row r sees keys up to its token's position
  std::int64_t begin;           // a multiple of kPagedKeyTile
  std::int64_t end;
  const std::int32_t* table;  // the sequence's blocks, from position 0
  KvLayer layer;              // of the kv head: `keys` [head_dim][16], `values` [16][head_dim]
  std::int64_t head_dim;
  float* scores;       // scratch [rows, kPagedKeyTile]
  float* accumulated;  // [rows, head_dim]: sum of exp(score - peak) * value
  float* peak;         // [rows]
  float* total;        // [rows]: sum of exp(score - peak), 0 for a row that sees none of the keys
};

struct PagedKernels {
  // Stores one token's key and value of one kv head, `slot` within the block that `keys` and
  // `values` point at. Half precision saturates at its largest finite values.
  void (*store)(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot,
                KvType type, void* keys, void* values);
  void (*attend)(const PagedItem& item);
  void (*swiglu)(const float* gate, const float* up, std::int64_t count, float* out);
};

// Any head size.
const PagedKernels& PortablePagedKernels();

// Only on a CPU with AVX2, FMA and F16C; head_dim a multiple of 8.
const PagedKernels& Avx2PagedKernels();

// Only on a CPU with Simd::kAvx512; head_dim a multiple of 16.
const PagedKernels& Avx512PagedKernels();

}  // namespace orchid
