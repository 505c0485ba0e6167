// The way into every exported function. An exported symbol jumps through its slot of rota_sim_table (exports.S); a
// simulated function puts its entry there when the library is loaded; all others return CUDA_ERROR_NOT_SUPPORTED. The
// entry is where faults are injected, where mutations break a function in a general way, and where a virtual clock sees
// the host's call; with none of these enabled, it only defers the thread's cancellation.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "generated/driver_symbols.h"
#include "generated/driver_types.h"
#include "scheduler/base/not_cancelled.h"
#include "tools/simgpu/driver/entry/clock_hook.h"

extern "C" void* rota_sim_table[];  // exports.S: in the order of the symbols

namespace rota::sim {

// Whether something observes the calls. Set before the program's first call.
extern std::atomic<bool> entries_watched;

// The factor by which copies between host and device are slower than in the profile (ROTA_SIM_FAULTS copies=FACTOR).
inline double copy_slowdown = 1;

// What is wrong with ROTA_SIM_FAULTS, or with mutations (mutations.h); empty: nothing. If not empty, cuInit fails.
const std::string& entry_error();

// False: the call must not be made and returns *answer.
bool enter_export(Symbol symbol, api::CUresult* answer);
// The result that the program sees, given the function's own result.
api::CUresult leave_export(Symbol symbol, api::CUresult answer);
// The result that the program sees for the exception being handled: it must not reach the program's frames, which may
// be C.
api::CUresult answer_of_exception();

template <auto function, Symbol symbol>
struct Entry;

template <class... Arguments, api::CUresult (*function)(Arguments...), Symbol symbol>
struct Entry<function, symbol> {
  Entry() { rota_sim_table[static_cast<size_t>(symbol)] = reinterpret_cast<void*>(&call); }
  static api::CUresult call(Arguments... arguments) {
    NotCancelled inside;  // only after the call, never in the driver, whose destructors wait and close files
    try {
      if (!entries_watched.load(std::memory_order_relaxed)) return function(arguments...);
      HostCall under_way;
      api::CUresult answer = api::CUDA_SUCCESS;
      return enter_export(symbol, &answer) ? leave_export(symbol, function(arguments...)) : answer;
    } catch (...) {
      return answer_of_exception();
    }
  }
};

}  // namespace rota::sim
