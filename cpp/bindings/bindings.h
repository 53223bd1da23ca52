// Python <-> engine conversions. They convert, hold references and release the GIL; decisions and
// checks belong to the engine.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <deque>
#include <string>
#include <vector>

#include "orchid/session.h"
#include "orchid/tensor.h"

namespace orchid::bindings {

namespace py = pybind11;

// Feeds together with what they borrow from; create, use and destroy with the GIL held.
struct HeldFeeds {
  std::vector<Feed> feeds;
  std::vector<py::object> arrays;
  std::deque<std::vector<std::string>> strings;
};

// Destinations with the arrays they write into.
struct HeldDestinations {
  std::vector<Destination> destinations;
  std::vector<py::object> arrays;
};

// Takes from `mapping` what `specs` names. C-contiguous, aligned, native arrays are borrowed as
// they are, others are copied once.
HeldFeeds HoldFeeds(const std::vector<TensorSpec>& specs, const py::dict& mapping);

// Only arrays that can be written in place are accepted; throws InvalidInput otherwise.
HeldDestinations HoldDestinations(const py::dict& mapping);

// A NumPy array over the output's memory, which keeps its owner alive; str objects for strings.
py::object ToPython(Output& output, const HeldDestinations& held);

// ("name", dtype text, shape) of each spec.
py::tuple Describe(const std::vector<TensorSpec>& specs);

void BindSession(py::module_& module);
void BindArena(py::module_& module);
void BindKernels(py::module_& module);

}  // namespace orchid::bindings
