// The inner loops of MeasureFmaRate; each runs `rounds` rounds and returns the floating-point
// operations done. Precondition: the CPU has the instruction set of the name.
#pragma once

#include <cstdint>

namespace orchid {

double FmaLoopPortable(std::int64_t rounds);
double FmaLoopAvx2(std::int64_t rounds);
double FmaLoopAvx512(std::int64_t rounds);

}  // namespace orchid
