// A test harness of a page: CHECK counts, TEST registers, main runs everything registered.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace orchid::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

inline int& Failures() {
  static int failures = 0;
  return failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Cases().push_back({name, body}); }
};

inline void Check(bool held, const char* text, const char* file, int line) {
  if (held) return;
  ++Failures();
  std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, text);
}

// True when `body` throws E with `part` in its message.
template <typename E>
bool Throws(const std::function<void()>& body, const std::string& part) {
  try {
    body();
  } catch (const E& e) {
    if (std::string(e.what()).find(part) != std::string::npos) return true;
    std::fprintf(stderr, "message was: %s\n", e.what());
  }
  return false;
}

}  // namespace orchid::test

#define TEST(name)                                                          \
  static void name();                                                       \
  static const orchid::test::Registration registration_##name(#name, name); \
  static void name()
#define CHECK(condition) orchid::test::Check((condition), #condition, __FILE__, __LINE__)
