// Row offsets of a ragged batch: sequence s owns rows [offsets[s], offsets[s + 1]).
#pragma once

#include <cstddef>
#include <cstdint>

namespace orchid {

// Accepts exactly: count >= 2, first offset 0, strictly increasing (no empty sequence), last ==
// rows. Reads `count` values and nothing else; everything that indexes with offsets is called after
// it. Throws InvalidInput naming the offending position. Thread-safe.
void CheckRowOffsets(const std::int32_t* offsets, std::size_t count, std::int64_t rows);

}  // namespace orchid
