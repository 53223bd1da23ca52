#include "check.h"

int main() {
  for (const auto& test : orchid::test::Cases()) {
    const int before = orchid::test::Failures();
    test.body();
    std::printf("%s %s\n", orchid::test::Failures() == before ? "ok  " : "FAIL", test.name);
  }
  return orchid::test::Failures() == 0 ? 0 : 1;
}
