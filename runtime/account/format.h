// The account of one process: what it used of the GPUs, written by the process into a file that it maps, and read by
// `rota` while it runs or after its end. Everything is in the file at any moment, so kill -9 loses nothing.
//
// A file is a Header, then kMaxThreads ThreadPages, of which the first `Header::thread_pages` are in use. All words are
// written by relaxed atomic stores, and except for two only by the process; a reader may see words of different
// moments. Times are nanoseconds. The name is PID-START[-N].account, START being the process's start time as in field
// 22 of /proc/PID/stat; N is there from the second program on that a process executes (exec keeps pid and start time).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "generated/driver_symbols.h"

namespace rota::account {

inline constexpr char kMagic[8] = {'r', 'o', 't', 'a', 'a', 'c', 'c', '\n'};
inline constexpr std::uint32_t kVersion = 3;

inline constexpr std::size_t kMaxGpus = 16;       // of one process; memory on others is not in the account
inline constexpr std::size_t kMaxAncestors = 16;  // the nearest ones
inline constexpr std::size_t kMaxErrors = 128;    // distinct pairs of function and error
inline constexpr std::size_t kMaxFindings = 64;   // distinct findings
inline constexpr std::size_t kMaxModules = 128;   // libraries and programs that allocated; the last one: all others
inline constexpr std::size_t kMaxThreads = 1024;  // at the same time
inline constexpr std::size_t kTimelineSteps = 1024;
inline constexpr std::size_t kLevels = 1024;       // of memory in use
inline constexpr std::size_t kStreams = 32;        // of which unfinished work can be told
inline constexpr std::size_t kThreadLaunches = 8;  // remembered of a thread, on as many streams

using Word = std::atomic<std::uint64_t>;

// What memory of a GPU was allocated as.
enum class MemoryKind : std::uint32_t {
  kPlain,          // cuMemAlloc, cuMemAllocPitch
  kManaged,        // cuMemAllocManaged
  kStreamOrdered,  // cuMemAllocAsync and pools
  kArray,          // arrays and mipmapped arrays
  kPhysical,       // cuMemCreate
  kGraph,          // memory of graphs
  kCount,
};
inline constexpr std::size_t kMemoryKinds = static_cast<std::size_t>(MemoryKind::kCount);
inline constexpr const char* kMemoryKindNames[kMemoryKinds] = {"plain", "managed",  "stream-ordered",
                                                               "array", "physical", "graph"};

// A process as /proc shows it.
struct Person {
  std::uint32_t pid;
  std::uint32_t command_bytes;  // of `command` in use
  std::uint64_t start_ticks;    // field 22 of /proc/PID/stat
  char folder[512];             // working directory; "" if it could not be read
  char command[1024];           // arguments, each ended by a zero; cut off
};

struct Gpu {
  unsigned char uuid[16];  // all zeros: this entry is not in use
  char name[64];
  std::uint64_t total_bytes;
  // Allocations in use by the program.
  Word used_bytes;
  Word used_peak_bytes;
  // The same since the last mark of a test (rota_test.h).
  Word lap_peak_bytes;
  // With contexts, modules and what else the process takes there, as rotad measures or assumes it.
  Word reserved_peak_bytes;
  struct Kind {
    Word bytes;
    Word peak_bytes;
  } kinds[kMemoryKinds];
};

// Error `code` of the driver, returned by `function`. In use if `calls` is not 0.
struct Error {
  std::atomic<std::uint32_t> function;  // Symbol
  std::atomic<std::uint32_t> code;
  Word calls;
};

enum class FindingKind : std::uint32_t {
  kNone,
  kFreedTwice,   // memory that had been freed was given to a function that frees; the driver refused it
  kEndedHandle,  // an object that had been destroyed was given to a function
};

// In use if `calls` is not 0.
struct Finding {
  std::atomic<std::uint32_t> kind;      // FindingKind
  std::atomic<std::uint32_t> function;  // Symbol
  std::atomic<std::uint32_t> ended_by;  // Symbol of the function that ended the object or freed the memory
  std::atomic<std::uint32_t> module;    // index of the module that called
  Word calls;
  Word value;  // the first handle or address
};

// The library or program whose code called the function that allocates: the nearest caller that is neither libcuda, nor
// libcudart, nor rota.
struct Module {
  char path[240];
  Word allocations;  // so far
  Word live;         // of them not freed
  Word live_bytes;
};

// What happened during one step of the timeline.
struct Step {
  std::atomic<std::uint32_t> waited_us;
  std::atomic<std::uint32_t> busy_us;  // by samples, as Header::busy_ns
};

// Used bytes of all GPUs together, from a moment (CLOCK_MONOTONIC) to that of the next level. The two are the same as
// long as no levels had to be merged.
struct Level {
  Word since_ns;
  Word most_bytes;
  Word least_bytes;
};

// A stream on which a kernel or graph was launched, when the process was asked.
enum class StreamState : std::uint32_t {
  kUnknown,     // something captures, or the driver did not say
  kIdle,        // all that was submitted has finished
  kUnfinished,  // the last launch, or something before it, has not
  kFailed,      // the driver answered with an error
};
struct Stream {
  std::uint64_t handle;
  std::uint32_t state;    // StreamState
  std::uint32_t tid;      // the thread that launched last
  char last_launch[256];  // the kernel's name as in its module, "(graph)", or "" if the driver does not tell it
};

struct Header {
  char magic[8];  // stored last
  std::uint32_t version;
  std::uint32_t header_bytes;       // sizeof(Header)
  std::uint32_t thread_page_bytes;  // sizeof(ThreadPage)
  std::uint32_t symbol_count;
  std::uint64_t symbol_list;  // kSymbolListHash of the writer

  // Who. Constant.
  Person self;
  std::uint32_t ancestor_count;
  Person ancestors[kMaxAncestors];  // parent first, up to the first process of the session or of the pid namespace
  // What the test runner called the test in this process's environment: RotaAttachment::test.
  char test[512];
  std::int64_t began_realtime_ns;
  std::int64_t began_monotonic_ns;

  // How it ends.
  std::atomic<std::int64_t> ended_monotonic_ns;  // exit() was called; 0: it runs, or was ended by a signal or _exit
  // When it last said that it lives, at least once a second once its monitor runs; 0: it has not. Of one that was
  // killed later than that, when the rota that reports its session last saw it: the only word that is written after its
  // end.
  Word alive_monotonic_ns;
  std::atomic<std::uint32_t> thread_pages;
  std::atomic<std::uint32_t> uncounted_threads;  // 1: there were threads without a page, whose calls are not counted
  std::atomic<std::uint32_t> errors_lost;        // 1: the table was full
  std::atomic<std::uint32_t> findings_lost;
  std::atomic<std::uint32_t> oom_reason;  // of the last CUDA_ERROR_OUT_OF_MEMORY: OutOfMemory
  std::atomic<std::uint32_t> module_count;

  // Time that this process's work was unfinished on a GPU while it was this process's turn, by samples (about one each
  // millisecond): `busy_samples` of `samples`, each weighted with the time since the one before.
  Word busy_ns;
  Word samples;
  Word busy_samples;

  Gpu gpus[kMaxGpus];
  Error errors[kMaxErrors];
  Finding findings[kMaxFindings];
  Module modules[kMaxModules];

  // The timeline: step i covers began_monotonic_ns + [i, i + 1) * timeline_step_ns. Whenever the steps do not suffice,
  // neighbours are merged and the steps last twice as long; `timeline_changes` is odd during that.
  Word timeline_step_ns;
  Word timeline_changes;
  Step timeline[kTimelineSteps];
  // Every change of the memory in use has its level. When the table is full, those neighbours are merged that this
  // tells least of: `timeline_changes` is odd during that, too.
  Word level_count;
  Level levels[kLevels];
  // Objects that went with their context, by the function that made them.
  Word gone_with_context[kSymbolCount];

  // What is unfinished: a process that wants to know raises `streams_asked`, the only word that others write. Within a
  // second the process fills `streams` and sets `streams_answered` to the same number, unless its thread for that
  // hangs.
  std::atomic<std::uint32_t> streams_asked;
  std::atomic<std::uint32_t> streams_answered;
  std::uint32_t stream_count;
  Stream streams[kStreams];

  // The test that the process says it is running (rota_test.h); "" between tests. `test_changes` is odd while it is
  // written.
  Word test_changes;
  char running_test[1024];
};

// Why an allocation was refused last.
enum class OutOfMemory : std::uint32_t {
  kNone,
  kDriver,   // the driver's own refusal, although rota's accounting shows free memory on the GPU
  kFull,     // the GPU is full of other programs' memory that cannot be evicted
  kLimit,    // a limit of the process, session or user
  kTooLarge  // more than the GPU has
};

// Of a thread, while it lives; then another thread's, which goes on counting.
struct ThreadPage {
  std::atomic<std::uint32_t> tid;  // 0: free
  // The function that the thread is inside of, as Symbol + 1; 0: none. The outermost one.
  std::atomic<std::uint32_t> function;
  // Since when it waits in front of the gate in that function (CLOCK_MONOTONIC); 0: it does not.
  Word waits_since_ns;
  Word waits;
  Word waited_ns;
  // Copies by single calls, by direction.
  struct Copies {
    Word calls;
    Word bytes;
  } to_device, to_host, on_device, by_address;
  // Its last launch on each of several streams, by a hash of the stream: where two share a place, the later one.
  struct Launch {
    Word stream;
    Word function;  // CUfunction; 0: a graph
    Word number;    // 0: none; larger: later, within this thread
  } launches[kThreadLaunches];
  Word launched;  // how many
  Word calls[kSymbolCount];
};

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t round_to_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
inline constexpr std::size_t kHeaderBytes = round_to_pages(sizeof(Header));
inline constexpr std::size_t kThreadPageBytes = round_to_pages(sizeof(ThreadPage));
inline constexpr std::size_t kFileBytes = kHeaderBytes + kMaxThreads * kThreadPageBytes;
static_assert(Word::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace rota::account
