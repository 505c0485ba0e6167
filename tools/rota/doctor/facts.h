// What `rota doctor` knows about this machine, as plain data: gathered by gather*.cpp and probe.cpp, judged by
// judge*.cpp. Gathering and judging are separate, so that every judgment has a test with made-up facts.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/status/holders.h"

namespace rota::doctor {

// The value that means no limit.
inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// How a child ended.
enum class End {
  kNotRun,
  kFinished,  // by itself, with a complete report
  kFailed,    // by itself, too early
  kCrashed,   // by a signal
  kTimedOut,  // by us
};

struct PassedOver {
  std::string path;
  std::string place;
  std::string why;
  bool own = false;  // it is rota's own library
};

enum class Search { kNotFound, kFound, kRefused };

struct DriverFacts {
  Search search = Search::kNotFound;
  std::string path;   // found, or the refused file that ROTA_REAL_LIBCUDA names
  std::string file;   // what the path leads to through links, e.g. ".../libcuda.so.580.159.04"
  std::string place;  // how it was found, one of preload.h's words
  std::string why;    // refused because of this
  std::vector<PassedOver> passed_over;
  bool simulated = false;   // it is simgpu
  bool compared = false;    // its exports were compared with those of librota.so; if not, the rest is meaningless
  std::string unreadable;   // why its exports could not be read; empty if they were
  std::size_t exports = 0;  // functions, without the debugger's cudbg*
  std::vector<std::string> unknown;  // of these, those that rota does not know
  std::vector<std::string> missing;  // functions that rota knows and the driver does not have
};

struct GpuFacts {
  int index = 0;  // nvidia-smi's number; the driver's ordinal where NVML does not know the GPU
  std::string name, uuid;
  std::uint64_t bytes = 0;
  int major = 0, minor = 0;  // compute capability
  int compute_mode = 0;      // CUcomputemode
  bool managed = false, concurrent_managed = false, pageable = false;
  bool virtual_memory = false, memory_pools = false;
};

// What NVML, the library behind nvidia-smi, reports about a GPU; it also lists GPUs that CUDA hides.
struct NvmlGpu {
  std::string uuid;
  int number = 0;                    // nvidia-smi's
  int mig_now = -1, mig_later = -1;  // 0 off, 1 on, -1 not supported
};

struct NvmlFacts {
  bool asked = false;
  int error = 0;  // nvmlReturn_t of nvmlInit
  std::string driver_version;
  std::vector<NvmlGpu> gpus;
};

// What a child found that loaded the driver without rota in front of it.
struct ProbeFacts {
  End end = End::kNotRun;
  int detail = 0;      // the signal, or the exit code
  std::string step;    // what it did last, e.g. "cuInit"
  std::string output;  // the end of what the driver printed
  double limit_seconds = 0;
  std::string load_error;      // the loader's words; empty if it loaded
  std::optional<int> version;  // e.g. 13000
  std::optional<int> init;     // CUresult
  std::optional<int> count;
  std::vector<GpuFacts> gpus;
  NvmlFacts nvml;
};

// What a child under rota's preload found.
struct TrialFacts {
  End end = End::kNotRun;
  int detail = 0;
  std::string step, output;
  std::string core_error;  // the loader's words about librota-core.so; empty if it loaded
  std::string cudart_error;
  std::string nvml_error;
  bool preloaded = false;          // the shim answers to "libcuda.so.1" there
  bool attached = false;           // a driver call has loaded librota-core.so
  bool asked_driver = false;       // the trial had a driver to reach
  std::optional<int> version;      // what the driver answered through the shim
  std::vector<std::string> lines;  // what the shim said, without "rota: "
};

struct ShimFile {
  std::string name;
  int error = 0;             // errno of reading it
  bool required = false;     // without it no program is covered
  std::string without = {};  // what is missing without it, if it is not required
};

struct PreloadedLibrary {
  std::string path;
  std::string source;  // "LD_PRELOAD" or "/etc/ld.so.preload"
  bool present = false;
  bool ours = false;               // a copy of librota.so
  bool companion = false;          // another file of rota's
  std::size_t cuda_functions = 0;  // driver functions that it exports
};

struct PreloadFacts {
  std::string directory;  // of the shims
  std::vector<ShimFile> files;
  std::string problem;                      // why the shim cannot be preloaded at all; empty if it can
  std::vector<PreloadedLibrary> libraries;  // what this process's preload lists name
  std::string library;                      // what `rota run` preloads for this driver
  bool fitted = false;                      // that is a copy of librota.so that shows what the driver has
  std::string fit_note;                     // why it is not a copy although the driver differs; or ""
  std::string nvml_library;                 // what it preloads in front of NVML; empty: nothing
  std::string nvml_note;                    // why nothing although there is an NVML, or which functions it adds; or ""
  bool in_force = false;                    // librota.so is mapped into this very process
  bool secure = false;                      // this process runs with raised privileges
  TrialFacts trial;
};

struct DaemonFacts {
  std::string skipped;              // one line about places that were skipped; empty: none
  std::vector<std::string> places;  // where it was searched for
  std::string socket;               // the socket that this is about
  int error = 0;                    // errno of connecting, 0 if connected
  bool answered = false;
  std::string silent{};    // what is wrong with one that accepts connections and does not answer
  std::string program;     // the rotad that `rota run` would start
  int program_error = 0;   // errno of executing it
  int other_protocol = 0;  // the version that it speaks, if not ours
  int protocol = 0;        // ours
  std::string version;     // of rota; empty from a rotad that does not say
  std::string mode;
  std::uint64_t pid = 0, quantum_ns = 0;
  std::size_t clients = 0;
  std::uint64_t descriptors = 0;       // how many files it may have open; 0: not visible
  std::vector<std::string> uncovered;  // programs in a session without rota: "pid 12 (command): why"
  std::vector<std::string> uncovered_remedies{};
  std::vector<tool::GpuHolder> elsewhere;  // GPUs that other rotads have
  std::vector<std::string> locks_gone{};   // lock files of its GPUs that something has removed
};

struct DeviceFile {
  std::string path;
  bool usable = false;  // for reading and writing, by this user
};

struct MpsFacts {
  std::string directory;
  bool alive = false;
  long pid = 0;  // 0 if unknown
};

struct HostFacts {
  std::string kernel;                // "6.1.0-40-amd64"
  std::string container;             // "docker", "kubernetes", …; empty outside
  std::string kernel_module;         // version of the NVIDIA kernel module; empty if none is loaded
  std::vector<DeviceFile> devices;   // /dev/nvidia*, /dev/dxg
  std::uint64_t memory = 0;          // bytes of RAM
  std::uint64_t memory_free = 0;     // MemAvailable
  std::uint64_t cgroup_limit = 0;    // 0: none
  std::uint64_t cgroup_used = 0;     // what counts against it, without page cache
  std::uint64_t open_files = 0;      // soft RLIMIT_NOFILE
  std::uint64_t open_files_max = 0;  // hard
  std::uint64_t locked_memory = 0;   // soft RLIMIT_MEMLOCK, bytes, or kUnlimited
  std::uint64_t address_space = 0;   // soft RLIMIT_AS, bytes, or kUnlimited
  bool membarrier = true, pidfd = true, sealed_memory = true;
  bool proc = true;                // there is a /proc
  std::string checkpoint_program;  // cuda-checkpoint, where it can be found
  MpsFacts mps;
};

struct CommandFacts {
  std::string name, path, interpreter;
  int error = 0;          // errno of the search
  std::string uncovered;  // words that follow "is"
  bool static_runtime = false;
};

struct Facts {
  std::string version;                           // of this rota
  int oldest_covered = 0, newest_covered = 0;    // CUDA versions, e.g. 11070
  std::size_t known_functions = 0;               // of the driver's, in all releases together
  std::map<std::string, std::string> variables;  // ROTA_* and CUDA_* of the environment
  DriverFacts driver;
  ProbeFacts probe;
  PreloadFacts preload;
  DaemonFacts daemon;
  HostFacts host;
  std::optional<CommandFacts> command;
};

}  // namespace rota::doctor
