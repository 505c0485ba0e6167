// What rotad knows at one moment: GPUs, programs, their tasks, sessions, accounts. `rota status` and everything else
// that shows rotad's state are views of it. A row is what the wire carries, and no row is larger than a message, so a
// new figure takes a field here, a line in scheduler/server/snapshot.cpp that fills it, and one in each view. Only
// totals.h's rows stay within rotad.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "scheduler/protocol/memory_mode.h"
#include "scheduler/protocol/pins.h"
#include "scheduler/protocol/totals.h"
#include "scheduler/protocol/types.h"

namespace rota::protocol {

// Why programs share a GPU as they do, as status shows it.
enum class SharingReason : std::uint32_t {
  kUnknown = 0,       // a rotad older than this field
  kMode = 1,          // because of exclusive or concurrent mode
  kMemory = 2,        // automatic mode: their memory does not fit together
  kFits = 3,          // their memory fits, and with a fixed quantum nothing else is considered
  kAlone = 4,         // fewer than two have made calls lately
  kMeasuring = 5,     // it is being measured
  kTrial = 6,         // it gave more than the other way
  kFewContend = 7,    // fewer than two make calls continuously: the others come in bursts or rest
  kNoCollision = 8,   // no two of them have kept the GPU busy at the same time: turns would gain nothing
  kMemoryLately = 9,  // automatic mode: their memory did not fit together a moment ago
};

struct GpuRow {
  Uuid uuid;
  std::uint32_t index;   // its bit in masks, and its place in the pages
  std::uint32_t number;  // as nvidia-smi numbers it, for people
  char name[kNameLength];
  std::uint64_t total_bytes;
  std::uint64_t used_bytes;  // sum over programs
  std::uint32_t clients;
  std::uint32_t holders;
  std::uint32_t waiters;
  std::uint32_t measured;  // not 0: the next two fields are valid
  // By the driver's count, for all processes.
  std::uint64_t driver_used_bytes;
  std::uint64_t driver_free_bytes;
  std::uint64_t handed_over_bytes;  // passed on from client to client since rotad started
  // Unmanaged memory, which belongs to no process that rotad knows: measured or, if that is not possible, estimated
  // from the driver's refusals.
  std::uint64_t outside_bytes;
  // How programs whose memory fits together share it: scheduler::Candidate, and whether that is being measured.
  std::uint32_t candidate;
  std::uint32_t looking;
  std::uint32_t active;     // programs that have made calls lately
  SharingReason reason;     // why they share it so
  std::uint64_t turn_ns;    // how long a turn is while others wait
  std::uint64_t switch_ns;  // from a grant until its holder runs, lately; 0: not known
  // The throughput of that way in its last trial, or of the other way while turns are in force, in thousandths of what
  // turns gave. 0: nothing has been tried with these programs.
  std::uint32_t trial_permille;
  Mode mode;
};

// What has been evicted from all GPUs of a program and restored since it began.
struct Moves {
  std::uint64_t out_bytes;     // copied to the host
  std::uint64_t out_ns;        // of moves that copied any, including examining and unmapping
  std::uint64_t in_bytes;      // copied back
  std::uint64_t in_ns;         // waits for memory included
  std::uint64_t spared_bytes;  // evicted without a copy: unchanged since the last one, or all zeros
};

// The user of a program that the asker must not know; its pid and session are 0 then.
inline constexpr std::uint32_t kHiddenUser = UINT32_MAX;
inline constexpr const char* kHiddenProgram = "another user's program";
struct ProgramRow {
  std::uint32_t client;
  std::int32_t pid;
  std::uint32_t uid;
  std::uint32_t session;  // SessionRow::number; 0: none
  char name[kNameLength];
  std::uint64_t gpus;         // touched
  std::uint64_t held_gpus;    // mask
  std::uint64_t wanted_gpus;  // mask, waiting; not those for which it waits with its gang (TaskRow::waits_for_gang)
  // The largest of its tasks' (TaskRow): of those that wait, or of those that hold if none waits.
  std::uint64_t since_ns;
  std::uint64_t held_ns;  // the largest of its tasks', and so is the next
  std::uint64_t waited_ns;
  std::uint32_t overrun;  // not 0: so is one of its tasks
  std::uint32_t padding;
  Moves moves;                        // of a program that swaps; 0 from any other
  char session_name[kSessionLength];  // of the innermost session that has one; empty: none has
  char container[kContainerLength];   // the beginning of its id; empty: it is in none
};

inline constexpr std::uint32_t kKnowsBusy = 1;
inline constexpr std::uint32_t kKnowsCalls = 2;
// A program on one GPU. Where it has coupled several (protocol.h), each of them has a row of the same task.
struct TaskRow {
  std::uint32_t client;
  std::uint32_t gpu;  // GpuRow::index
  MemoryMode mode;
  std::uint8_t measured;          // not 0: context_bytes and driver_bytes are; otherwise the first is assumed
  std::uint8_t light;             // not 0: it runs at any time, concurrently with those that take turns
  std::uint8_t known;             // kKnows..., or-ed: which of the next two fields are known
  std::uint32_t busy_permille;    // u: the part of its own time, in which it does not wait, that the GPU works for it
  std::uint64_t calls_per_1000s;  // r: its calls that submit work, in a thousand seconds of its own time
  std::uint64_t device_bytes;
  std::uint64_t promised_bytes;  // while it holds the GPU
  std::uint64_t asked_bytes;     // the same, where it waits for memory: in all; 0: it does not
  std::uint64_t resident_bytes;  // of one that swaps: what is on the GPU now; 0 from any other
  std::uint64_t context_bytes;   // beyond its allocations: contexts, modules, heaps
  std::uint64_t driver_bytes;    // that the driver counts for the process
  // Of its memory: what cannot be evicted, and the part of that which is pinned temporarily.
  std::uint64_t fixed_bytes;
  std::uint64_t fixed_for_now_bytes;
  // It waits and is passed over, since this much of its memory would not be on the GPU if it had its turn, or it holds
  // the GPU and cannot run without that. 0: neither. And how much of that would fit without memory of others that is
  // only pinned temporarily.
  std::uint64_t lacks_bytes;
  std::uint64_t lacks_for_now_bytes;
  // An allocation or a context waits until others have freed memory (AwaitRoom): of what size, of a context by a guess,
  // and for how long it has; 0: none.
  std::uint64_t awaited_bytes;
  std::uint64_t awaited_ns;
  std::uint64_t gpus;      // mask: all GPUs of the task
  std::uint64_t since_ns;  // how long it has held, or waited
  // Since it began: how long it has held any of its GPUs, and how long it has waited for some and held none.
  std::uint64_t held_ns;
  std::uint64_t waited_ns;
  std::uint8_t holds;    // not 0: it holds this GPU,
  std::uint8_t waits;    // and waits for it
  std::uint8_t overrun;  // not 0: it did not give its last grant back in time; others run concurrently with it
  PinAll pinned_all;     // why all of its memory there stays, if it does
  std::uint32_t gang;    // GangRow::number; 0: it takes its turns by itself
  // Of fixed_bytes: memory of extents that stays for good, in all and by reason (Pin).
  std::uint64_t pinned_bytes;
  std::uint64_t pinned_by[kPins];
  // What awaited_bytes are of, and for whom.
  std::uint8_t awaits_context;  // not 0: a context
  std::uint8_t awaits_movers;   // not 0: the programs of another rotad are still coming over, and it waits for these
  std::uint8_t waits_for_gang;  // not 0: it waits, but its gang not yet: members are missing, or end their last turn
  std::uint8_t padding[5];
};

// Why tasks are granted together.
enum class GangWhy : std::uint8_t {
  kNone = 0,
  kNamed = 1,       // `rota run --gang`
  kCollective = 2,  // they have looked up collective kernels, and one launcher has started them
  kMemory = 3,      // they share memory with other processes, and one launcher has started them
};
inline constexpr int kLastGangWhy = 3;

// Why the members of a gang take their turns by themselves for now.
enum class GangApart : std::uint8_t {
  kNo = 0,
  kNoRest = 1,  // their work did not finish together in time
  kNoRoom = 2,  // what they have on one GPU does not fit there
};

// Programs whose tasks have their turns together.
struct GangRow {
  std::uint32_t number;
  std::uint32_t programs;
  std::uint32_t size;  // number of programs that it is to have; 0: not known
  GangWhy why;
  std::uint8_t drains;  // not 0: its turn is over, and its members drain
  GangApart apart;
  std::uint8_t padding;
  char name[kNameLength];
};

// Everything that one `rota run` started.
struct SessionRow {
  std::uint32_t number;
  std::uint32_t programs;
  char id[kSessionLength];
};

// Whose memory is limited together.
struct AccountRow {
  std::uint32_t clients;
  std::uint32_t padding;
  std::uint64_t device_limit;  // on each GPU; kUnlimited: none
  std::uint64_t device_used;   // reserved, on the GPU with most of it
  std::uint64_t host_limit;
  std::uint64_t host_used;  // what may have to be in the host's memory
  // What its clients that swap have in the host's memory, and the part of it that they could give back.
  std::uint64_t host_swap_bytes;
  std::uint64_t host_spare_bytes;
  char name[kTextLength];
};

// A GPU that rotad has chosen for a program which has not used it yet (Choose).
struct ReservationRow {
  Uuid uuid;
  std::int32_t pid;  // that asked; 0: not visible to rotad, or its user is not to be known
  std::uint32_t uid;
  std::uint64_t left_ns;  // after which it is free for others
};

struct DaemonRow {
  std::uint64_t pid;
  std::uint64_t quantum_ns;  // 0: automatic
  std::uint64_t grants;      // since it started
  Mode mode;
  char rota_version[kVersionLength];  // e.g. "0.1.0"
  std::uint8_t nvml_released;         // it does not ask NVML, so that the driver can be unloaded
  std::uint8_t chooses;               // not 0: it answers kChoose
  std::uint16_t gpus;                 // how many `rota run` chooses by default; 0: none, the program sees all
};

struct Snapshot {
  std::vector<GpuRow> gpus;
  std::vector<ProgramRow> programs;
  std::vector<TaskRow> tasks;
  std::vector<GangRow> gangs;
  std::vector<SessionRow> sessions;
  std::vector<AccountRow> accounts;
  std::vector<ReservationRow> reservations;
  DaemonRow daemon{};
  // Only within rotad (totals.h).
  std::vector<GpuTotals> gpu_totals;
  std::vector<SeriesRow> series;

  // Null: it does not use that GPU.
  const TaskRow* task(std::uint32_t client, std::uint32_t gpu) const {
    const auto found =
        std::ranges::find_if(tasks, [&](const TaskRow& task) { return task.client == client && task.gpu == gpu; });
    return found == tasks.end() ? nullptr : &*found;
  }
  // Over the program's GPUs.
  std::uint64_t sum(std::uint32_t client, std::uint64_t TaskRow::* bytes) const {
    std::uint64_t sum = 0;
    for (const TaskRow& task : tasks) {
      if (task.client == client) sum += task.*bytes;
    }
    return sum;
  }
};

}  // namespace rota::protocol
