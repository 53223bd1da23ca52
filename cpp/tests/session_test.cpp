// Drives ONNX Runtime itself; the library's path is in ORCHID_TEST_ORT_LIBRARY.
#include "orchid/session.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "orchid/error.h"
#include "orchid/runtime.h"

namespace orchid {
namespace {

using test::Throws;

// ONNX, opset 13: y = Identity(x), float [n, 2].
constexpr char kIdentity[] =
    "\x08\x07:A\n\x10\n\x01x\x12\x01y\"\x08Identity\x12\x01tZ\x14\n\x01x\x12\x0f\n\r\x08\x01\x12"
    "\t\n\x03\x12\x01n\n\x02\x08\x02"
    "b\x14\n\x01y\x12\x0f\n\r\x08\x01\x12\t\n\x03\x12\x01n\n\x02\x08\x02"
    "B\x04\n\x00\x10\r";

std::string WriteIdentity() {
  const char* folder = std::getenv("TMPDIR");
  const std::string path =
      std::string(folder == nullptr ? "/tmp" : folder) + "/orchid_identity.onnx";
  std::ofstream(path, std::ios::binary).write(kIdentity, sizeof kIdentity - 1);
  return path;
}

Feed FloatFeed(std::vector<float>& values) {
  Feed feed;
  feed.name = "x";
  feed.dtype = DType::kFloat32;
  feed.dtype_text = "float32";
  feed.shape = {static_cast<std::int64_t>(values.size()) / 2, 2};
  feed.data = values.data();
  return feed;
}

TEST(TheRuntimeIsLoadedOnceAndAnswersByVersion) {
  const char* library = std::getenv("ORCHID_TEST_ORT_LIBRARY");
  CHECK(library != nullptr);
  if (library == nullptr) return;
  CHECK(Throws<LoadError>([] { Session("model.onnx", {}); }, "has not been loaded"));
  CHECK(Throws<LoadError>([] { InitRuntime("/nowhere/libonnxruntime.so"); }, "cannot open"));
  const RuntimeInfo& info = InitRuntime(library);
  CHECK(info.header_api_version == HeaderApiVersion());
  CHECK(&InitRuntime(library) == &info);
  CHECK(Throws<LoadError>([] { InitRuntime("/elsewhere.so"); }, "already loaded"));
}

TEST(ASessionRunsInPlaceAndFromManyThreads) {
  const Session session(WriteIdentity(), {});
  CHECK(session.inputs().size() == 1 && session.inputs()[0].name == "x");
  CHECK((session.inputs()[0].shape == std::vector<std::int64_t>{-1, 2}));
  std::vector<float> x{1, 2, 3, 4};
  std::vector<float> y(4);
  const Destination to{"y", DType::kFloat32, "float32", {2, 2}, y.data()};
  const std::vector<Output> placed = session.Run({FloatFeed(x)}, {to}, nullptr);
  CHECK(placed.size() == 1 && placed[0].preallocated == 0 && !placed[0].owned);
  CHECK(y == x);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&session, t] {
      for (int i = 0; i < 50; ++i) {
        std::vector<float> mine{static_cast<float>(t), static_cast<float>(i)};
        const std::vector<Output> out = session.Run({FloatFeed(mine)}, {}, nullptr);
        const auto* got = reinterpret_cast<const float*>(out[0].owned.get());
        CHECK(got[0] == mine[0] && got[1] == mine[1]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ATokenFiredBeforeTheRunEndsIt) {
  const Session session(WriteIdentity(), {});
  std::vector<float> x{1, 2};
  RunToken token;
  session.Run({FloatFeed(x)}, {}, &token);
  token.Terminate();
  CHECK(token.terminated());
  CHECK(Throws<RunTerminated>([&] { session.Run({FloatFeed(x)}, {}, &token); }, "terminated"));
}

TEST(AMissingFeedAndABadFileAreNamed) {
  const Session session(WriteIdentity(), {});
  CHECK(Throws<InvalidInput>([&] { session.Run({}, {}, nullptr); }, "'x' is missing"));
  CHECK(Throws<LoadError>([] { Session("/nowhere/model.onnx", {}); }, "cannot load"));
  CHECK(Throws<LoadError>(
      [] {
        SessionOptions options;
        options.intra_op_threads = 0;
        Session(WriteIdentity(), options);
      },
      "intra_op_threads is 0"));
}

}  // namespace
}  // namespace orchid
