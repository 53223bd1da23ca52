#include "orchid/session.h"

#include <cstring>
#include <new>
#include <utility>

#include "orchid/error.h"
#include "orchid/feeds.h"
#include "orchid/runtime.h"
#include "ort/api.h"
#include "ort/elements.h"
#include "ort/memory.h"
#include "ort/run_token_state.h"
#include "ort/session_options.h"
#include "run_failure.h"

namespace orchid {
namespace {

TensorSpec MakeSpec(const char* role, std::string name, const Ort::TypeInfo& info) {
  if (info.GetONNXType() != ONNX_TYPE_TENSOR) {
    throw LoadError(std::string(role) + " '" + name +
                    "' is not a tensor; the engine serves tensors");
  }
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = FromOrt(tensor.GetElementType());
  if (spec.dtype == DType::kOther) {
    throw LoadError(std::string(role) + " '" + spec.name + "' has ONNX element type " +
                    std::to_string(tensor.GetElementType()) + ", which the engine does not serve");
  }
  spec.shape = tensor.GetShape();
  std::vector<const char*> names(spec.shape.size());
  tensor.GetSymbolicDimensions(names.data(), names.size());
  spec.dim_names.assign(names.begin(), names.end());
  return spec;
}

}  // namespace

struct Session::Impl {
  Ort::Session session{nullptr};
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<const char*> input_names;
  std::vector<const char*> output_names;

  void ReadSignature() {
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
      inputs.push_back(MakeSpec("input", session.GetInputNameAllocated(i, allocator).get(),
                                session.GetInputTypeInfo(i)));
    }
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
      outputs.push_back(MakeSpec("output", session.GetOutputNameAllocated(i, allocator).get(),
                                 session.GetOutputTypeInfo(i)));
    }
    for (const TensorSpec& spec : inputs) input_names.push_back(spec.name.c_str());
    for (const TensorSpec& spec : outputs) output_names.push_back(spec.name.c_str());
  }

  Ort::Value Borrow(DType dtype, const std::vector<std::int64_t>& shape, void* data) const {
    return Ort::Value::CreateTensor(memory, data, ElementCount(shape) * ItemSize(dtype),
                                    shape.data(), shape.size(), ToOrt(dtype));
  }

  Ort::Value MakeInput(const Feed& feed) const {
    if (feed.dtype != DType::kString) {
      return Borrow(feed.dtype, feed.shape, const_cast<void*>(feed.data));
    }
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::Value value = Ort::Value::CreateTensor(allocator, feed.shape.data(), feed.shape.size(),
                                                ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
    for (std::size_t i = 0; i < feed.strings->size(); ++i) {
      const std::string& text = (*feed.strings)[i];
      text.copy(value.GetResizedStringTensorElementBuffer(i, text.size()), text.size());
    }
    return value;
  }

  std::vector<Output> RunOnce(const std::vector<const Feed*>& feeds,
                              const std::vector<Destination>& destinations,
                              const std::vector<int>& destination_of, RunToken* token);
};

namespace {

// Copies out, so that what the caller keeps for long holds no block of the runs' memory.
Output MakeOutput(const std::string& name, const Ort::Value& value, int preallocated) {
  Output output;
  output.name = name;
  output.preallocated = preallocated;
  const auto info = value.GetTensorTypeAndShapeInfo();
  output.dtype = FromOrt(info.GetElementType());
  output.shape = info.GetShape();
  const std::size_t count = info.GetElementCount();
  if (output.dtype == DType::kString) {
    output.strings.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      output.strings.push_back(value.GetStringTensorElement(i));
    }
  } else if (preallocated < 0) {
    const std::size_t bytes = count * ItemSize(output.dtype);
    output.owned.reset(new unsigned char[bytes]);
    if (bytes > 0) std::memcpy(output.owned.get(), value.GetTensorRawData(), bytes);
  }
  return output;
}

}  // namespace

std::vector<Output> Session::Impl::RunOnce(const std::vector<const Feed*>& feeds,
                                           const std::vector<Destination>& destinations,
                                           const std::vector<int>& destination_of,
                                           RunToken* token) {
  std::vector<Ort::Value> in;
  in.reserve(feeds.size());
  for (const Feed* feed : feeds) in.push_back(MakeInput(*feed));
  std::vector<Ort::Value> out;
  out.reserve(destination_of.size());
  for (const int index : destination_of) {
    if (index < 0) {
      out.emplace_back(nullptr);
      continue;
    }
    const Destination& to = destinations[static_cast<std::size_t>(index)];
    out.push_back(Borrow(to.dtype, to.shape, to.data));
  }
  Ort::RunOptions options;
  const TokenAttachment attachment(token, options);
  session.Run(options, input_names.data(), in.data(), in.size(), output_names.data(), out.data(),
              out.size());
  std::vector<Output> results;
  results.reserve(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    results.push_back(MakeOutput(outputs[i].name, out[i], destination_of[i]));
  }
  return results;
}

namespace {

// Tells the shared memory of a run, and that it is over, however it ended.
struct RunScope {
  RunScope() { SharedMemory().BeginRun(); }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;
  ~RunScope() { SharedMemory().EndRun(); }
};

[[noreturn]] void RethrowRunFailure(const Ort::Exception& e, const RunToken* token) {
  if (token != nullptr && token->terminated()) throw RunTerminated("the run was terminated");
  ThrowRunFailure(e.what(), e.GetOrtErrorCode() == ORT_INVALID_ARGUMENT);
}

}  // namespace

Session::Session(const std::string& path, const SessionOptions& options) {
  Ort::Env& environment = OrtEnvironment();  // before any other use of the API
  try {
    impl_ = std::make_unique<Impl>();
    impl_->session = Ort::Session(environment, path.c_str(), MakeOrtOptions(options));
    impl_->ReadSignature();
  } catch (const Ort::Exception& e) {
    throw LoadError("cannot load " + path + ": " + e.what());
  }
}

Session::~Session() = default;

const std::vector<TensorSpec>& Session::inputs() const { return impl_->inputs; }
const std::vector<TensorSpec>& Session::outputs() const { return impl_->outputs; }

std::string Session::Metadata(const std::string& key) const {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto value =
      impl_->session.GetModelMetadata().LookupCustomMetadataMapAllocated(key.c_str(), allocator);
  return value == nullptr ? std::string() : std::string(value.get());
}

std::vector<Output> Session::Run(const std::vector<Feed>& feeds,
                                 const std::vector<Destination>& destinations,
                                 RunToken* token) const {
  const std::vector<const Feed*> chosen = SelectFeeds(impl_->inputs, feeds);
  std::vector<int> destination_of(impl_->outputs.size(), -1);
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    const int output = FindSpec(impl_->outputs, destinations[i].name);
    if (output < 0) continue;
    CheckDestination(impl_->outputs[static_cast<std::size_t>(output)], destinations[i]);
    destination_of[static_cast<std::size_t>(output)] = static_cast<int>(i);
  }
  const RunScope scope;
  try {
    return impl_->RunOnce(chosen, destinations, destination_of, token);
  } catch (const Ort::Exception& e) {
    RethrowRunFailure(e, token);
  } catch (const std::bad_alloc&) {
    throw EngineFault("out of memory");
  }
}

}  // namespace orchid
