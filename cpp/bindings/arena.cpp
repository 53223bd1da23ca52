#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "orchid/decode_step.h"
#include "orchid/error.h"
#include "orchid/kv_arena.h"
#include "orchid/kv_dense.h"

namespace orchid::bindings {
namespace {

using Ints = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

std::shared_ptr<KvArena> MakeArena(std::int64_t layers, std::int64_t kv_heads,
                                   std::int64_t head_dim, std::int64_t blocks, bool half) {
  KvShape shape;
  shape.layers = layers;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.blocks = blocks;
  shape.type = half ? KvType::kFloat16 : KvType::kFloat32;
  return KvArena::Make(shape);
}

KvAccess AccessOf(const Ints& offsets, const Ints& past, const Ints& table) {
  if (offsets.ndim() != 1 || past.ndim() != 1 || table.ndim() != 2 ||
      offsets.shape(0) != past.shape(0) + 1 || table.shape(0) != past.shape(0)) {
    throw InvalidInput("accepted are row_offsets [S + 1], past_lengths [S] and block_table [S, B]");
  }
  KvAccess access;
  access.offsets = offsets.data();
  access.past = past.data();
  access.table = table.data();
  access.sequences = past.shape(0);
  access.table_width = table.shape(1);
  return access;
}

py::tuple RunArenaStep(const Session& session, const std::shared_ptr<KvArena>& arena,
                       const Ints& offsets, const Ints& past, const Ints& table,
                       const py::dict& feeds, RunToken* token) {
  const KvAccess access = AccessOf(offsets, past, table);
  HeldFeeds held = HoldFeeds(session.inputs(), feeds);
  StepResult result;
  {
    const py::gil_scoped_release unlocked;
    result = RunStep(session, arena, access, std::move(held.feeds), {}, token);
  }
  py::dict answer;
  for (Output& output : result.outputs) answer[py::str(output.name)] = ToPython(output, {});
  return py::make_tuple(answer, result.attention_ns);
}

using Floats = py::array_t<float, py::array::c_style>;

// An open step whose keys and values are read and written as dense tensors.
class DenseStep {
 public:
  DenseStep(const std::shared_ptr<KvArena>& arena, const Ints& offsets, const Ints& past,
            const Ints& table)
      : step_(std::make_unique<KvStep>(arena, AccessOf(offsets, past, table))) {}

  void Gather(std::int64_t width, std::vector<Floats>& keys, std::vector<Floats>& values,
              int threads) const {
    std::vector<DenseLayer> layers;
    for (std::size_t i = 0; i < Layers(keys, values, width); ++i) {
      layers.push_back({keys[i].mutable_data(), values[i].mutable_data()});
    }
    const py::gil_scoped_release unlocked;
    GatherPast(Open(), width, layers, threads);
  }

  void Scatter(std::int64_t width, const std::vector<Floats>& keys,
               const std::vector<Floats>& values, int threads) const {
    const KvAccess& access = Open().access();
    std::vector<ConstDenseLayer> layers;
    for (std::size_t i = 0; i < Layers(keys, values, width + access.offsets[1]); ++i) {
      layers.push_back({keys[i].data(), values[i].data()});
    }
    const py::gil_scoped_release unlocked;
    ScatterRows(Open(), width, layers, threads);
  }

  void Commit() const {
    Open();
    step_->Commit();
  }
  void Close() { step_.reset(); }

 private:
  const KvStep& Open() const {
    if (step_ == nullptr) throw InvalidInput("the step is closed");
    return *step_;
  }

  // How many layers there are, after a check that each tensor has the step's shape.
  std::size_t Layers(const std::vector<Floats>& keys, const std::vector<Floats>& values,
                     std::int64_t tokens) const {
    const KvShape& shape = Open().arena().shape();
    const std::int64_t wanted[] = {Open().access().sequences, shape.kv_heads, tokens,
                                   shape.head_dim};
    const auto fits = [&](const Floats& tensor) {
      return tensor.ndim() == 4 && std::equal(wanted, wanted + 4, tensor.shape());
    };
    if (keys.size() != values.size() || !std::all_of(keys.begin(), keys.end(), fits) ||
        !std::all_of(values.begin(), values.end(), fits)) {
      throw InvalidInput("accepted are float32 keys and values [sequences, kv_heads, " +
                         std::to_string(tokens) + ", head_dim]");
    }
    return keys.size();
  }

  std::unique_ptr<KvStep> step_;
};

py::array_t<std::int32_t> ToArray(const std::vector<std::int32_t>& values) {
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace

void BindArena(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  py::class_<KvArena, std::shared_ptr<KvArena>>(module, "KvArena")
      .def(py::init(&MakeArena), py::kw_only(), py::arg("layers"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("blocks"), py::arg("half"))
      .def("acquire", &KvArena::Acquire, py::arg("blocks"), py::arg("owner"), unlocked)
      .def("retain", &KvArena::Retain, py::arg("blocks"), unlocked)
      .def("release", &KvArena::Release, py::arg("blocks"), unlocked)
      .def("copy", &KvArena::Copy, py::arg("source"), py::arg("target"), unlocked)
      .def("references", [](const KvArena& arena) { return ToArray(arena.references()); })
      .def("filled", [](const KvArena& arena) { return ToArray(arena.filled()); })
      .def("stats", [](const KvArena& arena) {
        const KvStats stats = arena.stats();
        return py::make_tuple(stats.blocks, stats.used, stats.shared, stats.filled, stats.zeroed,
                              stats.bytes, stats.huge_pages);
      });
  py::class_<DenseStep>(module, "DenseStep")
      .def(py::init<const std::shared_ptr<KvArena>&, const Ints&, const Ints&, const Ints&>(),
           py::arg("arena"), py::kw_only(), py::arg("row_offsets"), py::arg("past_lengths"),
           py::arg("block_table"))
      .def("gather", &DenseStep::Gather, py::arg("width"), py::arg("keys").noconvert(),
           py::arg("values").noconvert(), py::kw_only(), py::arg("threads"))
      .def("scatter", &DenseStep::Scatter, py::arg("width"), py::arg("keys").noconvert(),
           py::arg("values").noconvert(), py::kw_only(), py::arg("threads"))
      .def("commit", &DenseStep::Commit)
      .def("close", &DenseStep::Close);
  module.def("run_step", &RunArenaStep, py::arg("session"), py::arg("arena"), py::kw_only(),
             py::arg("row_offsets"), py::arg("past_lengths"), py::arg("block_table"),
             py::arg("feeds"), py::arg("token"));
}

}  // namespace orchid::bindings
