// What this CPU can do, asked once at run time. Thread-safe.
#pragma once

#include <string>

namespace orchid {

// In rising order: a level's CPUs have what the lower ones need. kAvx512 stands for the F, BW, DQ
// and VL parts together with VNNI and F16C. Kernels that gain nothing from a level use a lower one.
enum class Simd { kPortable, kAvx2, kAvx512 };

// The best kernel set this CPU and its operating system allow.
Simd DetectSimd();

// True when kernels of `level` may run: asked for by `simd`, and this CPU has them.
inline bool Allows(Simd simd, Simd level) { return simd >= level && DetectSimd() >= level; }

const char* Name(Simd simd);

// True when half precision may be converted in hardware.
bool HasF16c();

// True when 512-bit FMA may be used.
bool HasAvx512();

// The marketing name ("AMD EPYC ..."), or the architecture where there is none.
std::string CpuModel();

// A short stable name of everything that makes compiled weights and timings portable between two
// machines: vendor, family, model and instruction sets, e.g. "amd-25-17-avx512vnni".
std::string MachineClass();

// One thread's fused multiply-add rate in GFLOP/s (a multiply-add counts two), the best of the
// vector widths available, over about `seconds` of busy work. Throws InvalidInput unless
// 0 < seconds <= 60.
double MeasureFmaRate(double seconds);

// The rate in GB/s at which `threads` threads together read memory that no cache holds, over about
// `seconds`. Throws InvalidInput unless 1 <= threads <= 1024 and 0 < seconds <= 60.
double MeasureReadRate(int threads, double seconds);

}  // namespace orchid
