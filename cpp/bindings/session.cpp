#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings.h"
#include "orchid/runtime.h"

namespace orchid::bindings {
namespace {

py::dict RunSession(const Session& session, const py::dict& feeds, const py::object& outputs,
                    RunToken* token) {
  const HeldFeeds held = HoldFeeds(session.inputs(), feeds);
  HeldDestinations destinations;
  if (!outputs.is_none()) destinations = HoldDestinations(outputs.cast<py::dict>());
  std::vector<Output> results;
  {
    const py::gil_scoped_release unlocked;
    results = session.Run(held.feeds, destinations.destinations, token);
  }
  py::dict answer;
  for (Output& result : results) answer[py::str(result.name)] = ToPython(result, destinations);
  return answer;
}

std::unique_ptr<Session> MakeSession(const std::string& path, int intra_op_threads, bool spinning,
                                     bool optimize, std::map<std::string, std::string> config,
                                     std::string save_optimized_to) {
  SessionOptions options;
  options.intra_op_threads = intra_op_threads;
  options.spinning = spinning;
  options.optimize = optimize;
  options.config = std::move(config);
  options.save_optimized_to = std::move(save_optimized_to);
  const py::gil_scoped_release unlocked;
  return std::make_unique<Session>(path, options);
}

}  // namespace

void BindSession(py::module_& module) {
  py::class_<RunToken>(module, "RunToken")
      .def(py::init<>())
      .def("terminate", &RunToken::Terminate, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("terminated", &RunToken::terminated);

  py::class_<Session>(module, "Session")
      .def(py::init(&MakeSession), py::arg("path"), py::kw_only(), py::arg("intra_op_threads"),
           py::arg("spinning"), py::arg("optimize"), py::arg("config"),
           py::arg("save_optimized_to"))
      .def_property_readonly("inputs", [](const Session& s) { return Describe(s.inputs()); })
      .def_property_readonly("outputs", [](const Session& s) { return Describe(s.outputs()); })
      .def("metadata", &Session::Metadata, py::arg("key"))
      .def("run", &RunSession, py::arg("feeds"), py::arg("outputs"), py::arg("token"));

  module.def(
      "init_runtime",
      [](const std::string& path) {
        const RuntimeInfo& info = InitRuntime(path);
        return py::make_tuple(info.library_path, info.library_version, info.header_api_version);
      },
      py::arg("library_path"));
  module.def(
      "trim_memory", [] { SharedMemory().Trim(); }, py::call_guard<py::gil_scoped_release>());
  module.def("memory_stats", [] {
    const RunMemoryStats stats = SharedMemory().stats();
    return py::make_tuple(stats.in_use, stats.cached, stats.reserved);
  });
  module.def("take_run_peak", &RunMemory::TakePeak);
  module.attr("header_api_version") = HeaderApiVersion();
}

}  // namespace orchid::bindings
