// One move of memory off a GPU or back to it: what it may use, and what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/memory_descriptor.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

using driver::Handed;
using driver::MemoryDescriptor;
using driver::SharedDescriptor;

// How memory is handed to other processes and taken from them. `give` and `take` may each be empty: then it is not.
struct Exchange {
  // Whether anybody takes memory now. This is asked first: making a descriptor takes the driver up to 3 ms while other
  // processes create memory (measured on an H100).
  std::function<bool()> gives = [] { return true; };
  // Offers an extent to other processes.
  std::function<void(int descriptor, std::uint64_t bytes)> give;
  // Whether others are said to be evicting memory there, in whatever way.
  std::function<bool()> coming = [] { return false; };
  // The next extent that has arrived, or nothing. Does not wait.
  std::function<std::optional<Handed>()> take;
};

// The driver's answer to what was asked of it within a context; nothing: the context has ended, and it was not asked.
// No error of the driver's means that: it may answer any of them to any call.
using Answer = std::optional<api::CUresult>;

// How a move proceeds. `within` runs a step with the context current, if that still exists; `stopping` says whether to
// give up.
struct Move {
  std::function<bool(FunctionRef<void()> step)> within = {};
  std::function<bool()> stopping = {};
  // Whether no work of the process runs. Only then is host memory unpinned: the driver waits for kernels first, and
  // launches by all threads wait with it (measured on an H100), so a kernel that waits for one would never end.
  std::function<bool()> idle = {};
  // Like `within`, but does not make the context current, which the driver may refuse. False: the context has ended,
  // and its work with it.
  std::function<bool(FunctionRef<void()> step)> while_alive = {};
  api::CUstream stream = nullptr;  // of that context; used only within such steps, like all that belongs to it
  Exchange exchange = {};
  // The context in which to check what memory contains; null: all of it counts as changed.
  api::CUcontext context = nullptr;
  // Unified Memory that is to move, in this order (move_order.h).
  std::vector<Allocation> ranges = {};
};

// By how much the memory of all programs on a GPU exceeds it.
struct Overcommitment {
  int device;
  std::uint64_t bytes;
};

struct Moved {
  std::uint64_t bytes = 0;         // copied
  std::uint64_t without_copy = 0;  // of memory evicted unchanged or unused, or cached, and of fresh memory that came
  std::uint64_t spared = 0;        // of that: memory that was evicted unchanged, unused or as zeros
  std::uint64_t taken_over = 0;    // of memory that was restored: into memory that another process has handed over
  std::uint64_t lacking = 0;       // bytes for which the driver has no memory
  bool lacks_host = false;         // the host has no memory for what should be evicted: it stays where it was
  bool failed = false;             // the driver refused, or a copy failed: the memory stays where it was
  api::CUresult error = api::CUDA_SUCCESS;  // the driver's error, unless a context ended
};

}  // namespace rota::memory
