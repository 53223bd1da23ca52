// Checks of caller tensors against a model's declarations. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "orchid/tensor.h"

namespace orchid {

// Symbolic dimension name -> the size it was first seen with, and by which tensor.
struct BoundDim {
  std::int64_t size;
  const std::string* tensor;
};
using DimBindings = std::unordered_map<std::string, BoundDim>;

// Picks, for every declared input in order, the feed of that name; feeds nobody declared are
// ignored. Every chosen feed is checked: element type, rank, fixed dimensions, and that dimensions
// of one symbolic name agree between tensors.
// Throws InvalidInput naming the tensor, what came, and what is accepted.
std::vector<const Feed*> SelectFeeds(const std::vector<TensorSpec>& inputs,
                                     const std::vector<Feed>& feeds);

// The same checks for memory that an output shall be written into. Throws InvalidInput.
void CheckDestination(const TensorSpec& output, const Destination& destination);

// Index of `name` among `specs`, or -1.
int FindSpec(const std::vector<TensorSpec>& specs, const std::string& name);

}  // namespace orchid
