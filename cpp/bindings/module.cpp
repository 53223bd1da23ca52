#include <exception>

#include "bindings.h"
#include "orchid/error.h"

namespace orchid::bindings {
namespace {

// The Python classes of worker.errors, held for the life of the process.
struct Errors {
  PyObject* invalid_input;
  PyObject* load;
  PyObject* terminated;
  PyObject* fault;
};
Errors g_errors;

void Translate(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const InvalidInput& e) {
    py::set_error(g_errors.invalid_input, e.what());
  } catch (const LoadError& e) {
    py::set_error(g_errors.load, e.what());
  } catch (const RunTerminated& e) {
    py::set_error(g_errors.terminated, e.what());
  } catch (const EngineFault& e) {
    py::set_error(g_errors.fault, e.what());
  }
}

}  // namespace
}  // namespace orchid::bindings

PYBIND11_MODULE(_engine, module) {
  namespace bindings = orchid::bindings;
  namespace py = pybind11;
  const auto errors = py::module_::import("worker.errors");
  bindings::g_errors = {py::object(errors.attr("InvalidInput")).release().ptr(),
                        py::object(errors.attr("ModelLoadError")).release().ptr(),
                        py::object(errors.attr("RunTerminated")).release().ptr(),
                        py::object(errors.attr("EngineFault")).release().ptr()};
  py::register_local_exception_translator(&bindings::Translate);
  bindings::BindSession(module);
  bindings::BindArena(module);
  bindings::BindKernels(module);
}
