#include "run_failure.h"

#include "orchid/error.h"

namespace orchid {
namespace {

constexpr char kNode[] = "while running ";
constexpr char kStatus[] = "Status Message: ";
constexpr char kAssertion[] = " was false. ";

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::string After(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? text : text.substr(at + mark.size());
}

// "Add node. Name:'Add_1'" and the reason, without source positions and assertion texts.
std::string Brief(const std::string& message) {
  const std::string node = After(message, kNode);
  std::string reason = After(After(node, kStatus), kAssertion);
  reason.erase(reason.find_last_not_of(" \n\r") + 1);
  return node.substr(0, node.find(std::string(" ") + kStatus)) + ": " + reason;
}

}  // namespace

void ThrowRunFailure(const std::string& message, bool invalid_argument) {
  const bool in_node = Contains(message, kNode) && Contains(message, kStatus);
  if (Contains(message, "bad_alloc") || Contains(message, "Failed to allocate memory")) {
    throw EngineFault("out of memory: " + message);
  }
  if (in_node) throw InvalidInput("the graph refused its inputs at " + Brief(message));
  if (invalid_argument) throw InvalidInput(message);
  throw EngineFault(message);
}

}  // namespace orchid
