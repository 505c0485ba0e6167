// Faults on demand, as ROTA_SIM_FAULTS and `rota sim --fault` give them, separated by commas:
//
//   cuMemAlloc@3=CUDA_ERROR_OUT_OF_MEMORY   the process's third call returns that and does nothing
//   cuLaunchKernel@5+=719                   every call from the fifth on; errors by name or number
//   cuMemcpy*@1=…                           any function whose name starts with this
//   cuDevicePrimaryCtxRetain@full=46        what the function answers in place of CUDA_ERROR_OUT_OF_MEMORY
//   cuLaunchKernel@5=sticky:CUDA_ERROR_ILLEGAL_ADDRESS   the call is made; its context returns that error from then on
//   cuLaunchKernel@9=lost                   the call's GPU falls off the bus, for every process
//   copies=4                                copies between host and device take four times as long
//
// A name without a version means all versions and stream forms of the function.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generated/driver_types.h"

namespace rota::sim {

struct Fault {
  enum class Kind { kAnswer, kSticky, kLost };
  std::string function;  // exact, without version, or with a * at its end
  uint64_t call = 1;     // from 1, counted over all functions that match the name
  bool onwards = false;  // the later calls too
  bool if_full = false;  // instead of counted calls: each for which there is no memory
  Kind kind = Kind::kAnswer;
  int error = 0;

  bool names(std::string_view symbol) const;
};

struct Faults {
  std::vector<Fault> calls;
  double copy_factor = 1;
};

// False: *error says which item is wrong and what is accepted.
bool parse_faults(const std::string& text, Faults* faults, std::string* error);

}  // namespace rota::sim
