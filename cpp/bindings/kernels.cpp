#include <algorithm>
#include <cmath>
#include <string>

#include "bindings.h"
#include "orchid/attention.h"
#include "orchid/cpu.h"
#include "orchid/error.h"
#include "orchid/row_offsets.h"

namespace orchid::bindings {
namespace {

using FloatArray = py::array_t<float, py::array::c_style>;
using OffsetArray = py::array_t<std::int32_t, py::array::c_style>;

Simd SimdNamed(const std::string& name) {
  for (const Simd level : {Simd::kPortable, Simd::kAvx2, Simd::kAvx512}) {
    if (name != Name(level)) continue;
    if (DetectSimd() < level) throw InvalidInput("this CPU has no " + name + " kernels");
    return level;
  }
  throw InvalidInput("simd is '" + name + "'; accepted are 'portable', 'avx2' and 'avx512'");
}

// The kernel by itself, for tests and benchmarks.
FloatArray Attention(const FloatArray& qkv, const OffsetArray& offsets, std::int64_t num_heads,
                     float scale, const py::object& bias, const std::string& simd) {
  if (qkv.ndim() != 2 || offsets.ndim() != 1 || num_heads < 1 || qkv.shape(1) == 0 ||
      qkv.shape(1) % (3 * num_heads) != 0) {
    throw InvalidInput("accepted are qkv [T, 3 * num_heads * head_dim] and row_offsets [S + 1]");
  }
  CheckRowOffsets(offsets.data(), static_cast<std::size_t>(offsets.size()), qkv.shape(0));
  AttentionArgs args;
  args.qkv = qkv.data();
  args.offsets = offsets.data();
  args.sequences = offsets.size() - 1;
  args.heads = num_heads;
  args.head_dim = qkv.shape(1) / (3 * num_heads);
  args.scale = scale > 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(args.head_dim));
  FloatArray table;
  if (!bias.is_none()) {
    table = bias.cast<FloatArray>();
    if (table.ndim() != 2 || table.shape(0) != num_heads || table.shape(1) % 2 != 1) {
      throw InvalidInput("accepted is bias [num_heads, 2 * M - 1]");
    }
    args.bias = table.data();
    args.bias_reach = (table.shape(1) + 1) / 2;
  }
  FloatArray out({qkv.shape(0), qkv.shape(1) / 3});
  args.out = out.mutable_data();
  const Simd level = SimdNamed(simd);
  {
    const py::gil_scoped_release unlocked;
    AttentionPlan(args, level).RunAll();
  }
  return out;
}

}  // namespace

void BindKernels(py::module_& module) {
  module.def("ragged_attention", &Attention, py::arg("qkv"), py::arg("row_offsets"), py::kw_only(),
             py::arg("num_heads"), py::arg("scale") = 0.0F, py::arg("bias") = py::none(),
             py::arg("simd"));
  // Encoders' profiles are kept by it, and their kernels have nothing above AVX2.
  module.def("simd", [] { return Name(std::min(DetectSimd(), Simd::kAvx2)); });
  module.def("cpu_model", &CpuModel);
  module.def("machine_class", &MachineClass);
  module.def("measure_fma_rate", &MeasureFmaRate, py::arg("seconds"),
             py::call_guard<py::gil_scoped_release>());
  module.def("measure_read_rate", &MeasureReadRate, py::arg("threads"), py::arg("seconds"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace orchid::bindings
