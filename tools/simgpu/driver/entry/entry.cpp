// What happens on entry to and exit from an exported function, if enabled.
#include "tools/simgpu/driver/entry/entry.h"

#include <cxxabi.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/faults.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {

std::atomic<bool> entries_watched{false};

namespace {

struct CountedFault {
  Fault fault;
  std::atomic<uint64_t> calls{0};
};

struct Watch {
  std::vector<std::unique_ptr<CountedFault>> faults;
  std::string error;  // what is wrong with the environment variables; empty: nothing

  Watch();
};

// Created when the library is loaded, before the program's first call.
Watch& watch() {
  static auto* made = new Watch;
  return *made;
}

// NOLINTBEGIN(concurrency-mt-unsafe): read once, when the library is loaded
Watch::Watch() {
  if (const char* text = std::getenv("ROTA_SIM_FAULTS"); text != nullptr && *text != '\0') {
    Faults asked;
    if (!parse_faults(text, &asked, &error)) error = "ROTA_SIM_FAULTS: " + error;
    for (Fault& fault : asked.calls) {
      faults.push_back(std::make_unique<CountedFault>());
      faults.back()->fault = std::move(fault);
    }
    copy_slowdown = asked.copy_factor;
  }
  if (error.empty()) error = read_mutations();
}
// NOLINTEND(concurrency-mt-unsafe)

[[gnu::constructor]] void start_watching() {
  if (!watch().faults.empty() || any_broken()) entries_watched.store(true);
}

// The fault for this call, or null.
const Fault* meet_fault(Symbol symbol) {
  const Fault* met = nullptr;
  for (const auto& each : watch().faults) {
    if (each->fault.if_full || !each->fault.names(kSymbolNames[static_cast<size_t>(symbol)])) continue;
    uint64_t call = each->calls.fetch_add(1) + 1;
    if (call == each->fault.call || (each->fault.onwards && call > each->fault.call)) met = &each->fault;
  }
  return met;
}

// The answer that replaces CUDA_ERROR_OUT_OF_MEMORY of this function.
CUresult answer_if_full(Symbol symbol) {
  for (const auto& each : watch().faults) {
    if (!each->fault.if_full || !each->fault.names(kSymbolNames[static_cast<size_t>(symbol)])) continue;
    return static_cast<CUresult>(each->fault.error);
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The fault of the current call, for leave_export. Calls never nest: exports do not call exports.
const Fault*& fault_under_way() {
  thread_local const Fault* fault = nullptr;
  return fault;
}

void break_context(const Fault& fault) {
  if (!driver().initialised()) return;
  ContextPointer context;
  if (driver().current(&context) != CUDA_SUCCESS) return;
  if (fault.kind == Fault::Kind::kLost) {
    driver().state().lose(context->gpu);
  } else {
    context->fail(static_cast<CUresult>(fault.error));
  }
}

}  // namespace

const std::string& entry_error() {
  return watch().error;
}

bool enter_export(Symbol symbol, CUresult* answer) {
  fault_under_way() = nullptr;
  if (const Fault* fault = meet_fault(symbol)) {
    *answer = static_cast<CUresult>(fault->error);
    if (fault->kind == Fault::Kind::kAnswer) return false;
    fault_under_way() = fault;
  }
  Broken how = broken(symbol);
  if (how == Broken::kWaits && driver().initialised()) {
    for (const ContextPointer& context : driver().contexts.all()) driver().wait_for(*context);
  }
  *answer = how == Broken::kRefuse ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  return how != Broken::kRefuse && how != Broken::kIdle;
}

CUresult leave_export(Symbol symbol, CUresult answer) {
  if (const Fault* fault = std::exchange(fault_under_way(), nullptr)) break_context(*fault);
  if (answer == CUDA_ERROR_OUT_OF_MEMORY) answer = answer_if_full(symbol);
  bool lenient = broken(symbol) == Broken::kLenient;
  return lenient && answer != CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : answer;
}

CUresult answer_of_exception() {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread was cancelled or ends in a callback: the C library ends the process if this stops here
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::length_error&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::system_error& error) {
    bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return no_thread ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace rota::sim
