#include "orchid/row_offsets.h"

#include <string>

#include "orchid/error.h"

namespace orchid {

void CheckRowOffsets(const std::int32_t* offsets, std::size_t count, std::int64_t rows) {
  if (count < 2) {
    throw InvalidInput("row_offsets has " + std::to_string(count) +
                       " values; accepted is one more than the number of sequences, at least 2");
  }
  if (offsets[0] != 0) {
    throw InvalidInput("row_offsets[0] is " + std::to_string(offsets[0]) + "; accepted is 0");
  }
  for (std::size_t i = 1; i < count; ++i) {
    if (offsets[i] <= offsets[i - 1]) {
      throw InvalidInput("row_offsets[" + std::to_string(i) + "] is " + std::to_string(offsets[i]) +
                         " after " + std::to_string(offsets[i - 1]) +
                         "; accepted are strictly increasing offsets (no empty sequence)");
    }
  }
  if (offsets[count - 1] != rows) {
    throw InvalidInput("row_offsets ends at " + std::to_string(offsets[count - 1]) +
                       "; accepted is the number of rows, " + std::to_string(rows));
  }
}

}  // namespace orchid
