#include "orchid/cpu.h"

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace orchid {
namespace {

#if defined(__x86_64__)

std::string Vendor() {
  std::array<unsigned, 4> r{};
  if (__get_cpuid(0, &r[0], &r[1], &r[2], &r[3]) == 0) return "x86";
  std::array<char, 12> text{};
  std::memcpy(text.data(), &r[1], 4);
  std::memcpy(text.data() + 4, &r[3], 4);
  std::memcpy(text.data() + 8, &r[2], 4);
  const std::string vendor(text.data(), text.size());
  if (vendor == "AuthenticAMD") return "amd";
  if (vendor == "GenuineIntel") return "intel";
  return "x86";
}

std::string FamilyAndModel() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return "0-0";
  unsigned family = (a >> 8) & 0xF;
  unsigned model = (a >> 4) & 0xF;
  if (family == 6 || family == 15) model |= ((a >> 16) & 0xF) << 4;
  if (family == 15) family += (a >> 20) & 0xFF;
  return std::to_string(family) + "-" + std::to_string(model);
}

const char* InstructionSet() {
  if (HasAvx512()) return __builtin_cpu_supports("avx512vnni") ? "avx512vnni" : "avx512";
  return DetectSimd() >= Simd::kAvx2 ? "avx2" : "sse2";
}

#endif

}  // namespace

Simd DetectSimd() {
#if defined(__x86_64__)
  // The builtin also checks that the operating system saves the wide registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Simd::kPortable;
  if (HasAvx512() && __builtin_cpu_supports("avx512vnni") && HasF16c()) return Simd::kAvx512;
  return Simd::kAvx2;
#else
  return Simd::kPortable;
#endif
}

const char* Name(Simd simd) {
  switch (simd) {
    case Simd::kAvx512:
      return "avx512";
    case Simd::kAvx2:
      return "avx2";
    case Simd::kPortable:
      break;
  }
  return "portable";
}

bool HasF16c() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool HasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

std::string CpuModel() {
#if defined(__x86_64__)
  std::array<std::uint32_t, 12> brand{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    std::uint32_t* r = brand.data() + leaf * 4;
    if (__get_cpuid(0x80000002U + leaf, r, r + 1, r + 2, r + 3) == 0) return "x86_64";
  }
  std::array<char, 49> text{};
  std::memcpy(text.data(), brand.data(), 48);
  std::string model(text.data());
  model.erase(0, model.find_first_not_of(' '));
  model.erase(model.find_last_not_of(' ') + 1);
  return model;
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

std::string MachineClass() {
#if defined(__x86_64__)
  return Vendor() + "-" + FamilyAndModel() + "-" + InstructionSet();
#else
  return CpuModel();
#endif
}

}  // namespace orchid
