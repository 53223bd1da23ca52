// What a failed run means.
#pragma once

#include <string>

namespace orchid {

// Throws InvalidInput when a node of the graph refused the values or shapes it was given, and
// EngineFault for everything else. `message` is ONNX Runtime's; `invalid_argument` says that its
// error code was that. Shapes of a graph are only partly declared, so what does not fit beyond the
// declared part shows as a node's failure.
[[noreturn]] void ThrowRunFailure(const std::string& message, bool invalid_argument);

}  // namespace orchid
