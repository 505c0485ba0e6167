// What threads and processes of the stress tests do at once: each action makes something of the driver, uses it, checks
// the bytes that came out and gives all of it back. The text returned is what was wrong; empty: nothing.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <string>

#include "tests/unit/tools/simgpu/process.h"

namespace simgpu_test {

// What the threads of a process share.
struct Common {
  CUcontext context = nullptr;  // the primary one of device 0
  CUmodule module = nullptr;
  CUmemoryPool pool = nullptr;
  // Events that any thread may wait for, made before and destroyed after all threads.
  std::array<CUevent, 8> events{};
};

// So many actions, in an order that the seed decides. The thread's current context is common.context, before and after.
std::string run_actions(Library& library, Common& common, unsigned seed, int rounds);

// Makes the common things, runs `threads` threads of run_actions, and takes the common things down. Afterwards the
// GPU's memory is as free as before, unless other processes use it (`alone`).
std::string run_threads(Library& library, unsigned seed, int threads, int rounds, bool alone);

}  // namespace simgpu_test
