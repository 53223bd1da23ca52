// IEEE 754 half precision in software, the same bits as the F16C instructions give.
#pragma once

#include <cstdint>
#include <cstring>

namespace orchid {

inline float FloatFromHalf(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  std::uint32_t mantissa = half & 0x3FFU;
  std::uint32_t bits = sign;
  if (exponent == 0x1F) {  // infinity, or a NaN made quiet
    bits |= 0x7F800000U | (mantissa << 13) | (mantissa != 0 ? 0x00400000U : 0U);
  } else if (exponent != 0) {
    bits |= ((exponent + 112U) << 23) | (mantissa << 13);
  } else if (mantissa != 0) {  // subnormal: normalise
    std::uint32_t shift = 113;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      --shift;
    }
    bits |= (shift << 23) | ((mantissa & 0x3FFU) << 13);
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest, ties to even.
inline std::uint16_t HalfFromFloat(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  bits &= 0x7FFFFFFFU;
  if (bits > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((bits >> 13) & 0x3FFU));
  }
  if (bits >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds past 65504
  std::uint32_t rest;
  std::uint32_t half;
  if (bits >= 0x38800000U) {
    half = (bits - 0x38000000U) >> 13;
    rest = (bits & 0x1FFFU) << 19;
  } else {  // subnormal or zero
    const std::uint32_t shift = 126U - (bits >> 23);
    if (shift > 24) return sign;
    const std::uint32_t mantissa = (bits & 0x7FFFFFU) | 0x800000U;
    half = mantissa >> shift;
    rest = mantissa << (32U - shift);
  }
  if (rest > 0x80000000U || (rest == 0x80000000U && (half & 1U) != 0)) ++half;
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace orchid
