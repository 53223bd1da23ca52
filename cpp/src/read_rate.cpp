#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "orchid/cpu.h"
#include "orchid/error.h"

namespace orchid {
namespace {

// Far more than the caches of any one CPU hold.
constexpr std::size_t kWords = std::size_t{64} << 20 >> 3;

std::uint64_t ReadAll(const std::uint64_t* words) {
  std::uint64_t acc[16] = {};
  for (std::size_t i = 0; i < kWords; i += 16) {
    for (std::size_t lane = 0; lane < 16; ++lane) acc[lane] ^= words[i + lane];
  }
  std::uint64_t all = 0;
  for (const std::uint64_t part : acc) all ^= part;
  return all;
}

}  // namespace

double MeasureReadRate(int threads, double seconds) {
  if (threads < 1 || threads > 1024) {
    throw InvalidInput("threads is " + std::to_string(threads) + "; accepted is 1 to 1024");
  }
  if (!(seconds > 0.0 && seconds <= 60.0)) {
    throw InvalidInput("seconds is " + std::to_string(seconds) + "; accepted is above 0 up to 60");
  }
  using Clock = std::chrono::steady_clock;
  std::atomic<int> ready{0};
  std::atomic<std::uint64_t> sink{0};
  std::vector<double> rates(static_cast<std::size_t>(threads));
  const auto read = [&](std::size_t index) {
    const std::vector<std::uint64_t> words(kWords, index + 1);
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    const auto begin = Clock::now();
    double bytes = 0.0;
    double took = 0.0;
    while (took < seconds) {
      sink.fetch_xor(ReadAll(words.data()));
      bytes += static_cast<double>(kWords * sizeof(std::uint64_t));
      took = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    rates[index] = bytes / took;
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < rates.size(); ++i) others.emplace_back(read, i);
  read(0);
  for (std::thread& other : others) other.join();
  double total = 0.0;
  for (const double rate : rates) total += rate;
  return total / 1e9;
}

}  // namespace orchid
