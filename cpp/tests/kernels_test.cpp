#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "orchid/cpu.h"
#include "orchid/error.h"
#include "orchid/feeds.h"
#include "orchid/ragged.h"
#include "orchid/row_offsets.h"
#include "run_failure.h"

namespace orchid {
namespace {

using test::Throws;

bool Refused(const std::vector<std::int32_t>& offsets, std::int64_t rows, const char* part) {
  return Throws<InvalidInput>([&] { CheckRowOffsets(offsets.data(), offsets.size(), rows); }, part);
}

TEST(RowOffsetsAreCheckedBeforeUse) {
  const std::vector<std::int32_t> good{0, 3, 4};
  CheckRowOffsets(good.data(), good.size(), 4);
  CHECK(Refused({}, 0, "0 values"));
  CHECK(Refused({0}, 0, "1 values"));
  CHECK(Refused({1, 4}, 4, "row_offsets[0] is 1"));
  CHECK(Refused({0, 3, 3}, 3, "row_offsets[2] is 3 after 3"));
  CHECK(Refused({0, 5, 3}, 3, "row_offsets[2] is 3 after 5"));
  CHECK(Refused({0, -1}, -1, "row_offsets[1] is -1"));
  CHECK(Refused({0, 3}, 4, "ends at 3; accepted is the number of rows, 4"));
  CHECK(Refused({0, std::numeric_limits<std::int32_t>::max()}, 4, "ends at"));
}

TEST(MeanAndPositionsFollowTheOffsets) {
  const std::vector<std::int32_t> offsets{0, 2, 3};
  const std::vector<float> x{1, 10, 3, 30, 5, 50};
  std::vector<float> mean(4);
  RaggedMean(x.data(), 2, offsets.data(), 2, mean.data());
  CHECK((mean == std::vector<float>{2, 20, 5, 50}));
  std::vector<std::int64_t> positions(3);
  RaggedPositions(offsets.data(), 2, positions.data());
  CHECK((positions == std::vector<std::int64_t>{0, 1, 0}));
}

Feed FloatFeed(const char* name, std::vector<std::int64_t> shape) {
  Feed feed;
  feed.name = name;
  feed.dtype = DType::kFloat32;
  feed.dtype_text = "float32";
  feed.shape = std::move(shape);
  return feed;
}

TEST(FeedsAreChosenByNameAndChecked) {
  const std::vector<TensorSpec> specs{{"a", DType::kFloat32, {-1, 3}, {"n", ""}},
                                      {"b", DType::kFloat32, {-1}, {"n"}}};
  const std::vector<Feed> good{FloatFeed("b", {2}), FloatFeed("other", {9}),
                               FloatFeed("a", {2, 3})};
  const std::vector<const Feed*> chosen = SelectFeeds(specs, good);
  CHECK(chosen.size() == 2 && chosen[0] == &good[2] && chosen[1] == &good[0]);
  const auto refused = [&](const std::vector<Feed>& feeds, const char* part) {
    return Throws<InvalidInput>([&] { SelectFeeds(specs, feeds); }, part);
  };
  CHECK(refused({FloatFeed("a", {2, 3})},
                "input 'b' is missing; the model takes a float32 [n, 3], b float32 [n]"));
  CHECK(refused({FloatFeed("a", {2, 4}), FloatFeed("b", {2})}, "input 'a' has shape [2, 4]"));
  CHECK(refused({FloatFeed("a", {6}), FloatFeed("b", {2})}, "rank 1"));
  CHECK(
      refused({FloatFeed("a", {2, 3}), FloatFeed("b", {4})}, "its dimension n is 2 in input 'a'"));
  Feed wide = FloatFeed("b", {2});
  wide.dtype = DType::kFloat64;
  wide.dtype_text = "float64";
  CHECK(refused({FloatFeed("a", {2, 3}), wide}, "element type float64; accepted is float32 [n]"));
}

TEST(DestinationsAreCheckedAgainstTheOutput) {
  const TensorSpec spec{"y", DType::kFloat32, {-1, 2}, {"n", ""}};
  Destination destination{"y", DType::kFloat32, "float32", {5, 2}, nullptr};
  CheckDestination(spec, destination);
  destination.shape = {5, 3};
  CHECK(Throws<InvalidInput>([&] { CheckDestination(spec, destination); }, "output 'y'"));
}

TEST(AFailedRunIsSortedByItsMessage) {
  const std::string node =
      "Non-zero status code returned while running Add node. Name:'sum' Status Message: "
      "/src/file.h:5 void Init() a == b was false. Attempting 2 by 3\n";
  CHECK(Throws<InvalidInput>(
      [&] { ThrowRunFailure(node, false); },
      "the graph refused its inputs at Add node. Name:'sum': Attempting 2 by 3"));
  CHECK(Throws<InvalidInput>([] { ThrowRunFailure("Invalid rank", true); }, "Invalid rank"));
  CHECK(Throws<EngineFault>([] { ThrowRunFailure("thread pool", false); }, "thread pool"));
  CHECK(Throws<EngineFault>([&] { ThrowRunFailure(node + "std::bad_alloc", true); },
                            "out of memory"));
}

TEST(TheCpuIsNamed) {
  CHECK(!CpuModel().empty());
  CHECK(!MachineClass().empty());
  CHECK(MachineClass().find(' ') == std::string::npos);
  CHECK(MeasureFmaRate(0.001) > 0.1);
  CHECK(Throws<InvalidInput>([] { MeasureFmaRate(0.0); }, "seconds"));
  CHECK(Throws<InvalidInput>([] { MeasureFmaRate(std::nan("")); }, "seconds"));
  CHECK(MeasureReadRate(2, 0.001) > 0.1);
  CHECK(Throws<InvalidInput>([] { MeasureReadRate(0, 1.0); }, "threads"));
  CHECK(Throws<InvalidInput>([] { MeasureReadRate(1, std::nan("")); }, "seconds"));
}

}  // namespace
}  // namespace orchid
