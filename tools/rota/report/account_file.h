// Reads the account of one process (runtime/account/format.h), whether it runs, has ended or was killed. A file may
// also be cut off, of another build, or hostile: nothing in it is trusted, and what cannot be read is refused in one
// line that names the file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/account/format.h"
#include "scheduler/base/result.h"

namespace rota::report {

// A moment of the system's clock: nanoseconds since 1970.
using Realtime = std::int64_t;

struct PersonRecord {
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::vector<std::string> command;
  std::string folder;
  // As in the names of the session's files.
  std::string id() const;
};

struct GpuRecord {
  std::size_t device = 0;  // the process's number for it
  std::string uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t peak_bytes = 0;
  std::uint64_t lap_peak_bytes = 0;
  std::uint64_t reserved_peak_bytes = 0;
  std::uint64_t kind_peak_bytes[account::kMemoryKinds] = {};
};

struct ErrorRecord {
  std::uint32_t function = 0;  // Symbol; may be none of this build's
  std::uint32_t code = 0;
  std::uint64_t calls = 0;
};

struct FindingRecord {
  account::FindingKind kind = account::FindingKind::kNone;
  std::uint32_t function = 0;
  std::uint32_t ended_by = 0;
  std::string module;  // "" if not known
  std::uint64_t calls = 0;
  std::uint64_t value = 0;
};

struct ModuleRecord {
  std::string path;
  std::uint64_t allocations = 0;
  std::uint64_t live = 0;
  std::uint64_t live_bytes = 0;
};

struct CopyCount {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

struct StepRecord {
  std::uint32_t waited_us = 0;
  std::uint32_t busy_us = 0;
};

// Memory in use on all GPUs from a moment to that of the next one: between `least` and `most`.
struct LevelRecord {
  Realtime since = 0;
  std::uint64_t most = 0;
  std::uint64_t least = 0;
};

// Up to the last step in which anything happened.
struct Timeline {
  std::uint64_t step_ns = 0;
  std::vector<StepRecord> steps;
};

enum class Ending {
  kExited,   // by exit()
  kKilled,   // by a signal, or it called _exit()
  kRunning,  // it had not ended when this was read
};

struct ThreadRecord {
  std::uint32_t tid = 0;
  std::string function;  // in which it was
  bool at_gate = false;
};

struct ProcessAccount {
  std::string id;  // PID-START[-N], the file's name
  PersonRecord self;
  std::vector<PersonRecord> ancestors;  // parent first
  std::string test;                     // by its environment
  std::string running_test;             // the one that it last reported to be running
  Realtime began_ns = 0;
  Realtime ended_ns = 0;  // 0: not known
  Realtime alive_ns = 0;  // its last sign of life; of a process that runs, now
  Ending ending = Ending::kKilled;
  std::uint64_t busy_ns = 0;
  std::uint64_t waits = 0;
  std::uint64_t waited_ns = 0;
  CopyCount to_device, to_host, on_device, by_address;
  std::vector<std::uint64_t> calls;  // by Symbol
  std::vector<GpuRecord> gpus;
  std::vector<ErrorRecord> errors;
  std::vector<FindingRecord> findings;
  std::vector<ModuleRecord> modules;
  bool waiting = false;               // some thread waits for its turn, or for memory
  std::vector<Realtime> waits_since;  // of each thread that waits, or did at the end; not included in waited_ns
  std::vector<ThreadRecord> inside;   // threads that were inside of a function at the end
  account::OutOfMemory out_of_memory = account::OutOfMemory::kNone;
  Timeline timeline;
  std::vector<LevelRecord> levels;               // in order; nothing is in use before the first one
  std::vector<std::uint64_t> gone_with_context;  // objects, by the Symbol that made them
  std::vector<std::string> notes;                // what the account says is missing in it, each a sentence
};

// The error's text is "FILE: why".
Result<ProcessAccount> read_account(const std::string& path);

// The name of a driver function without version and stream form ("cuMemAlloc"), or "function 70000".
std::string function_name(std::uint32_t symbol);
// "CUDA_ERROR_OUT_OF_MEMORY", or "CUDA error 12345".
std::string error_name(std::uint32_t code);

// Whether a thread at the gate waits for memory for its context: `rota ci` holds it until its test fits, or the driver
// had no memory for the context and the thread waits for a turn, in which others evict theirs. A context that fits
// needs no turn.
bool waits_for_room(const ThreadRecord& thread);

// Whether this process runs: its start time tells it from a later process with the same pid.
bool is_running(pid_t process, std::uint64_t start_ticks);
bool is_running(const std::string& id);  // PID-START
// Field 22 of /proc/PID/stat; 0 if there is no such process.
std::uint64_t start_ticks_of(pid_t process);

}  // namespace rota::report
