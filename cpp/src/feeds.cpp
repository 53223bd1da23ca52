#include "orchid/feeds.h"

#include "orchid/error.h"

namespace orchid {
namespace {

std::string Expected(const TensorSpec& spec) {
  return std::string(Name(spec.dtype)) + " " + ShapeText(spec.shape, spec.dim_names);
}

std::string Declared(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) {
    if (!text.empty()) text += ", ";
    text += spec.name + " " + Expected(spec);
  }
  return text;
}

// `role` is "input" or "output"; `Given` is a Feed or a Destination.
template <typename Given>
void CheckDeclaration(const char* role, const TensorSpec& spec, const Given& given) {
  const auto fault = [&](const std::string& what) {
    throw InvalidInput(std::string(role) + " '" + spec.name + "' has " + what + "; accepted is " +
                       Expected(spec));
  };
  if (given.dtype != spec.dtype) fault("element type " + given.dtype_text);
  if (given.shape.size() != spec.shape.size()) {
    fault("rank " + std::to_string(given.shape.size()) + " (shape " + ShapeText(given.shape) + ")");
  }
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] >= 0 && spec.shape[i] != given.shape[i]) {
      fault("shape " + ShapeText(given.shape));
    }
  }
}

void BindDims(const TensorSpec& spec, const Feed& feed, DimBindings& bound) {
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    const std::string& dim = spec.dim_names[i];
    if (spec.shape[i] >= 0 || dim.empty()) continue;
    const auto [entry, fresh] = bound.try_emplace(dim, BoundDim{feed.shape[i], &spec.name});
    if (!fresh && entry->second.size != feed.shape[i]) {
      throw InvalidInput("input '" + spec.name + "' has shape " + ShapeText(feed.shape) +
                         ", but its dimension " + dim + " is " +
                         std::to_string(entry->second.size) + " in input '" +
                         *entry->second.tensor + "'; accepted is " + Expected(spec));
    }
  }
}

}  // namespace

int FindSpec(const std::vector<TensorSpec>& specs, const std::string& name) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::vector<const Feed*> SelectFeeds(const std::vector<TensorSpec>& inputs,
                                     const std::vector<Feed>& feeds) {
  std::vector<const Feed*> chosen;
  chosen.reserve(inputs.size());
  DimBindings bound;
  for (const TensorSpec& spec : inputs) {
    const Feed* match = nullptr;
    for (const Feed& feed : feeds) {
      if (feed.name == spec.name) match = &feed;
    }
    if (match == nullptr) {
      throw InvalidInput("input '" + spec.name + "' is missing; the model takes " +
                         Declared(inputs));
    }
    CheckDeclaration("input", spec, *match);
    BindDims(spec, *match, bound);
    chosen.push_back(match);
  }
  return chosen;
}

void CheckDestination(const TensorSpec& output, const Destination& destination) {
  CheckDeclaration("output", output, destination);
  if (output.dtype == DType::kString) {
    throw InvalidInput("output '" + output.name +
                       "' is a string tensor and cannot be preallocated");
  }
}

}  // namespace orchid
