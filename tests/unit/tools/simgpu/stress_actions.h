// What threads and processes of the stress tests do concurrently: each action creates objects of the driver, uses them,
// checks the resulting bytes and destroys the objects. It returns a description of what was wrong; empty: nothing.
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

// Creates the common objects, runs `threads` threads of run_actions, and destroys the common objects. If no other
// process uses the GPU (`alone`), as much of its memory has to be free afterwards as before.
std::string run_threads(Library& library, unsigned seed, int threads, int rounds, bool alone);

}  // namespace simgpu_test
