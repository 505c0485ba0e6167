// The protocol between rotad and its clients: messages over a SOCK_SEQPACKET Unix socket, and two shared pages per
// client. Plain data only: this header is compiled into other people's processes (in librota-core.so) and into rotad.
//
// A client connects, says `hello`, and gets `welcome` with two descriptors (SCM_RIGHTS, in this order): its lease page,
// which rotad writes and the client can only map for reading, and its usage page, which the client writes. Both are
// memfds of kPageBytes that rotad created and sealed against resizing. The client then names the GPUs that it touches
// (`add_gpu`), asks for them (`want`), and gives them back (`give_back`) once another client waits. A grant is
// announced only in the lease page: the client's threads wait on its futex word, so a hand-over costs no message to the
// next holder.
//
// Versions. A program lives longer than a rotad, and a container brings its own rota, so each side serves a range of
// versions and both speak the newest that they share. Messages before the choice (hello, and what needs no hello) have
// the form of the oldest version that its sender speaks; hello also says the newest. rotad's welcome carries the chosen
// version in its header, and so does every message after it.
//   - A message has at most kMaxMessageBytes, and its sender omits what follows its kind's body. Fields that are
//     missing are zero, fields beyond the known ones are ignored, and so is a message of an unknown kind.
//   - A field is never moved and never gets another meaning: a later version adds fields behind the last one, or kinds.
// Versions 1 to 8 were never released.
//
// Promises. GpuLease::promised_bytes says how much the client may have on each GPU of its grant. A client that is about
// to have more sends kRoom first, with its bytes in all, and takes them once the promise covers them: so the memory of
// two holders always fits together. rotad raises promises in the order in which clients asked, and lets other holders
// give back where that is necessary. A promise never falls while its grant lasts, and ends with it: the client says in
// its usage page what it has then and what it waits for, and the next grant promises that. A client that does not hold
// a GPU asks for nothing, and lets no work run under a grant that promises less than it has by then. The next holder
// would evict Unified Memory a little at a time. So rotad says how much of a holder's memory is in the way
// (GpuLease::clear_bytes), and the holder may evict that much before it gives the lease back. The promise is about
// bytes on the GPU, however they come and go.
//
// Swap memory stays on the GPU until the client itself evicts it: the driver does not evict it, and refuses allocations
// of the next holder. So the client says how much of it is there (GpuUsage::resident_bytes), even while it does not
// hold the GPU, and what the driver has refused although it does (short_bytes). Nothing moves when a lease is given
// back. When the holders of a GPU have too little memory, rotad asks clients that do not hold it for the deficit and a
// little more, by the same clear_bytes; a client that holds a GPU and swaps there is not asked. A client that is asked
// evicts its memory once it is proven that none of its work runs, and updates resident_bytes meanwhile; a client that
// cannot evict says so in fixed_bytes. If a client evicts nothing for two seconds, rotad asks others instead.
//
// Handing memory over. Swap memory may go to the next holder instead of the driver, which would zero it first:
// GpuLease::hands_over says so. For each extent that has been copied to the host the client then sends kHandOver with a
// descriptor of its physical memory (SCM_RIGHTS; CUDA's CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), and keeps nothing of
// it; resident_bytes falls as if the driver had it back. rotad forwards it at once, as kExtent, to a client that has
// too little memory there, or closes it; it keeps none. A client that does not need an extent closes it. The donor
// could keep a mapping and read what the recipient writes there, so extents only pass between clients of one trust
// domain, which rotad derives from the kernel's credentials of its peers: the same user in the same user and pid
// namespaces, or what its settings say.
//
// Introductions. A client that has exported memory by a legacy IPC handle of rota's announces its random number, again
// to each new rotad. A client that has the handle asks for the client of that number. If both are of one trust domain,
// each gets one end of a new socket (SOCK_SEQPACKET), and rotad keeps none; otherwise the answer comes without a
// descriptor. The client says of which clients it has memory open (kOpened), again to each new rotad: the work of both
// may wait for each other, so as long as it has, they are of one gang, unless a gang was named for them (Gang).
//
// Limits. rotad enforces the limits of sessions, users, cgroups and the host's memory, and hears of every allocation
// before it is made: a client has no more on a GPU than its latest kReserved says, and sends kReserve before it exceeds
// that. rotad answers at once or, if limits are in the way, once the others have said (kTighten, kState) what they do
// not need. It waits for no GPU work. A client says kState for each GPU right after kGpuAdded, with what it has by
// then. All answers are messages; rotad changes the lease page's event word after it has sent one.
//
// All swap memory of a client has to be there at once, with all contexts and all memory that cannot be evicted. A
// client therefore reserves four amounts, none of which it exceeds: in all, what can be evicted, what cannot
// (fixed_bytes), and what its swap memory takes in extents (swapped_bytes). rotad refuses any request that would leave
// some client with too little memory for its swap memory.
//
// Gangs. Tasks of several clients that have to run at the same time (the ranks of one job) name the same gang (kGang),
// and rotad grants them together or not at all. While others wait and the gang's turn is over, or all its members are
// idle, it drains as one: a kernel of one member may wait for a call that another has yet to make. So each closes its
// gates and says in its usage page once its work has finished. As long as some have not, each of the others may make
// one call at a time (GpuLease::gang_step). Once the work of all has finished, all give back.
//
// Every field that comes from the other side is checked before it is used.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "scheduler/base/printable.h"
#include "scheduler/protocol/snapshot.h"
#include "scheduler/protocol/types.h"

namespace rota::protocol {

// Below 100: client to rotad. From 100 on: rotad to client.
enum class Kind : std::uint16_t {
  // client to rotad
  kHello = 1,       // Hello; answered by kWelcome or kRefused
  kAddGpu = 2,      // AddGpu, sent again to be measured again; answered by kGpuAdded or kRefused
  kWant = 3,        // Want: queue a task; a later want of the task replaces its set of GPUs and keeps the place
  kGiveBack = 4,    // GiveBack: the named grant has drained; ignored unless it is the one in force
  kUsage = 5,       // no body: the usage page changed by enough to matter (rotad also polls it)
  kStatus = 6,      // no body, no hello needed; answered by the rows of a Snapshot (snapshot.h), kStatusDaemon last
  kStay = 7,        // no body, no hello needed: rotad does not end as idle while the sending process lives
  kRoom = 8,        // Room: this client's bytes on a GPU that it holds; answered in GpuLease::promised_bytes
  kSession = 9,     // Session: this client belongs to it; before its first GPU
  kReserve = 10,    // Reserve: what this client is going to have on a GPU; answered by kReserved
  kState = 11,      // State: what this client has on a GPU and will not exceed before it has reserved more
  kHandOver = 12,   // Extent, with one descriptor: memory for a client with a deficit
  kGang = 13,       // Gang: this client's tasks are members from their next grants on
  kAnnounce = 14,   // Announce: this client has exported memory, and answers to this number
  kIntroduce = 15,  // Introduce: this client wants to talk to the one of this number; answered by kIntroduced
  kAwaitRoom = 16,  // AwaitRoom: an allocation or a context was refused; answered by kTryAgain
  kChoose = 17,     // Choose, no hello needed: GPUs for a program that is about to start; answered by kChosen
  kOpened = 18,     // Opened: this client has memory of another one open, or has it no longer
  // rotad to client
  kWelcome = 101,
  kGpuAdded = 102,
  kRefused = 103,  // in answer to kAddGpu it concerns only that GPU; in answer to anything else rotad then closes the
                   // connection
  kReserved = 107,
  kTighten = 108,     // Tighten: answered by kState for each GPU
  kExtent = 110,      // Extent, with one descriptor: memory of another client, for this client's use
  kIntroduced = 111,  // Introduced, with one descriptor if it was done: a socket to the other client
  kTryAgain = 112,    // TryAgain: to kAwaitRoom: at once that the client waits, later the answer
  kChosen = 113,      // Chosen
  // The rows of a Snapshot: in this order, except that gangs come before sessions, and reservations before the last.
  kStatusGpu = 120,
  kStatusProgram = 121,
  kStatusTask = 122,
  kStatusSession = 123,
  kStatusAccount = 124,
  kStatusDaemon = 125,  // the last
  kStatusGang = 126,
  kStatusReservation = 127,
};

struct Hello {
  std::uint32_t newest_version;  // that the client speaks; the oldest is in the header
  char name[kNameLength];        // the program's name, NUL-terminated
  // Not 0: the process has lost its rotad, and may run work meanwhile. rotad believes it only where it cannot see when
  // the process started.
  std::uint32_t returns;
};

struct AddGpu {
  Uuid uuid;
  std::uint64_t total_bytes;    // the GPU's memory
  std::uint64_t context_bytes;  // measured cost of this client's context; 0 if unknown: rotad assumes one
  char name[kNameLength];       // e.g. "NVIDIA H200"
  std::uint32_t number;         // as nvidia-smi numbers it, as far as the client can tell: in PCI order
  std::uint32_t padding;
};

struct GpuAdded {
  Uuid uuid;
  std::uint32_t index;   // bit in every GPU mask of this daemon, and index in the pages
  std::uint32_t number;  // as nvidia-smi numbers it, for people
};

// What a client does on one GPU is a *task*, which takes turns by itself. A client couples the tasks of GPUs that it
// needs at the same time by naming them as one in its wants: from then on they are one task, until a want names one of
// its GPUs in another task. Then every GPU that is not in that task is a task by itself again, and wants of the tasks
// that have ended are withdrawn. GPUs that were not added are ignored in both masks.
struct Want {
  // Mask; all at once or not at all. 0 withdraws the wants of all tasks with a GPU in `task`, and of all of the
  // client's tasks if that is 0, too.
  std::uint64_t gpus;
  // Not 0: this client's work already runs on these GPUs, by a grant of a rotad that died. Such a want is granted at
  // once while the new rotad is young (kReclaimSeconds); later it is a want like any other.
  std::uint32_t running;
  std::uint32_t padding;
  // Not 0: a signal handler has run in a waiting thread, and the program can react only once its call returns. At most
  // once a second, less often where hand-overs take long, such a want goes before all others, for a short turn.
  std::uint32_t urgent;
  // Not 0, where GpuLease::watch has kWatchAlone: the client measures, and needs exclusive use of what it holds until
  // it sends a want without this. GpuLease::alone_until_ns is the answer.
  std::uint32_t alone;
  // All GPUs of the task: `gpus` are among them, whether or not the mask has them. While that couples GPUs otherwise
  // than they are, and the client holds a GPU of one of the tasks that would end or change, the want is ignored.
  std::uint64_t task;
};
inline constexpr int kReclaimSeconds = 10;
// A turn may end early, at a pause of its holder, once the part that has passed is this many times as long as the part
// that is left.
inline constexpr int kLastPart = 4;

struct GiveBack {
  std::uint32_t grant;  // GpuLease::grant as the client saw it,
  std::uint32_t gpu;    // on this GPU: all that its task holds goes back
  // The GPUs of which the client makes one task. rotad may not have joined them yet: what the client holds on them by a
  // grant of this number goes back, too. 0: not said.
  std::uint64_t task;
};

struct Room {
  std::uint32_t gpu;
  std::uint32_t padding;
  std::uint64_t bytes;  // what it has and is about to take, together; a later one replaces it, a value within the
                        // promise withdraws it
};

// A session belongs to one user: another user's session of the same name is a different one.
struct Session {
  char id[kSessionLength];     // NUL-terminated
  std::uint64_t device_bytes;  // the most that all its clients may have on each GPU; kUnlimited: no limit
  std::uint64_t host_bytes;    // the most of it that may have to be in the host's memory; the same
  char name[kSessionLength];   // for people, NUL-terminated; empty: none
};

inline constexpr std::uint32_t kMostInGang = 256;  // clients

// A gang belongs to one user, whatever the sessions of its clients: another user's gang of the same name is a different
// one. The first that a client names counts, except that one named because of memory (GangWhy::kMemory) gives way to
// one that it names for another reason.
struct Gang {
  char name[kNameLength];  // NUL-terminated; empty: the client is to be of none, whatever memory it opens
  std::uint32_t size;      // number of its clients; until all are there, but no longer than a minute, none is granted
  GangWhy why;
  std::uint8_t padding[3];
};

struct Reserve {
  std::uint32_t gpu;
  std::uint32_t number;         // comes back with the answer
  std::uint64_t device_bytes;   // in all
  std::uint64_t movable_bytes;  // the part of it that can be evicted
  std::uint64_t fixed_bytes;    // the part of it that cannot
  std::uint64_t swapped_bytes;  // what swap memory takes there
};

struct State {
  std::uint32_t gpu;
  std::uint32_t answered;  // number of the latest kReserved for this GPU; 0: none
  std::uint64_t device_bytes;
  std::uint64_t movable_bytes;
  std::uint32_t round;  // of the latest kTighten; 0: none
  std::uint32_t padding;
  std::uint64_t fixed_bytes;
  std::uint64_t swapped_bytes;
};

struct Extent {
  std::uint32_t gpu;
  std::uint32_t padding;
  std::uint64_t bytes;  // the full size of the memory behind the descriptor
};

// Random, and secret to every process that has none of the process's handles.
struct ProcessNumber {
  std::uint64_t words[2];
  auto operator<=>(const ProcessNumber&) const = default;
};

struct Announce {
  ProcessNumber number;
};

struct Introduce {
  ProcessNumber number;   // as announced by the other client
  std::uint32_t request;  // comes back with the answer; not 0
  std::uint32_t padding;
};

struct Introduced {
  std::uint32_t request;  // 0: another client, of the same trust domain, has asked for this one
  std::uint32_t padding;
};

inline constexpr std::size_t kMostOpened = 64;  // clients of whom one may say that it has memory open

struct Opened {
  ProcessNumber number;  // as announced by the other client, perhaps later
  std::uint32_t open;    // 0: no longer
  std::uint32_t padding;
};

// The driver or rotad has refused an allocation, or the driver a context, since others have memory there that cannot be
// evicted. The client waits, outside its gate, until rotad says that it may try again, and asks again if it is refused
// once more. rotad has others try first, or refuses, as limits/room_queue.h says. While it waits the client says the
// same again every few seconds, and gives up on a rotad that does not answer.
struct AwaitRoom {
  // What waits: an allocation that stays on the GPU, one in extents, or a context.
  enum class What : std::uint32_t { kStays = 0, kSwapped = 1, kContext = 2 };
  std::uint32_t gpu;
  std::uint32_t number;  // comes back with the answer
  std::uint64_t bytes;   // of the allocation, which the usage page does not count meanwhile; of a context a guess
  // CLOCK_MONOTONIC: when the program made its call, and when it was refused last.
  std::uint64_t since_ns;
  std::uint64_t tried_ns;
  What what;
  std::uint32_t padding;
};

struct TryAgain {
  enum class Answer : std::uint32_t { kRefused = 0, kAgain = 1, kWaits = 2 };
  std::uint32_t gpu;
  std::uint32_t number;
  Answer answer;
  std::uint32_t padding;
};

// A GPU that a program could use.
struct Candidate {
  Uuid uuid;
  std::uint32_t total_mib;
  std::uint32_t used_mib;  // by all processes, as far as the asker knows
};
inline constexpr std::uint32_t kMaxCandidates = 16;

// A program that is about to start is to use `count` of these GPUs, those with the most free memory. They are reserved
// for the session, that is, other choices count them as used, until one of its programs names the GPU, the process that
// asks ends, or a minute has passed. The process then counts as one that has sent kStay.
struct Choose {
  std::uint32_t count;
  std::uint32_t candidates;
  char session[kSessionLength];  // id of the innermost session that the program is going to name
  Candidate gpus[kMaxCandidates];
};

struct Chosen {
  std::uint32_t count;
  std::uint32_t padding;
  Uuid gpus[kMaxCandidates];  // in the order of the candidates
};

// What the client may have there from now on, whether the request was granted or not.
struct Reserved {
  std::uint32_t gpu;
  std::uint32_t number;
  std::uint64_t device_bytes;
  std::uint64_t movable_bytes;
  std::uint32_t granted;   // 0: refused
  char text[kTextLength];  // why it was refused: whose limit, how much
  std::uint32_t full;      // 1: refused because of memory that others have there, and may free
  std::uint64_t fixed_bytes;
  std::uint64_t swapped_bytes;
};

struct Tighten {
  std::uint32_t round;
};

struct Welcome {
  std::uint32_t client;  // this client's number, for messages and `rota status`
  Mode mode;
  std::uint64_t daemon_pid;
  std::uint64_t quantum_ns;  // 0: automatic
};

// Why rotad will not serve: one line for the user, naming the thing and the remedy.
struct Refused {
  char text[kTextLength];
};

struct Message {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kOldestVersion;  // a side that has agreed on another version sets it
  Kind kind{};
  union Body {
    Hello hello;
    AddGpu add_gpu;
    Want want;
    GiveBack give_back;
    Room room;
    Session session;
    Gang gang;
    Reserve reserve;
    State state;
    Extent extent;
    Announce announce;
    Introduce introduce;
    Introduced introduced;
    Opened opened;
    AwaitRoom await_room;
    TryAgain try_again;
    Choose choose;
    Chosen chosen;
    Welcome welcome;
    GpuAdded gpu_added;
    Refused refused;
    Reserved reserved;
    Tighten tighten;
    GpuRow gpu;
    ProgramRow program;
    TaskRow task;
    GangRow gang_row;
    SessionRow session_row;
    AccountRow account;
    ReservationRow reservation;
    DaemonRow daemon;
    std::uint8_t bytes[504];
  } body{.bytes = {}};
};
static_assert(sizeof(Message) == 512 && sizeof(Message) <= kMaxMessageBytes && std::is_trivially_copyable_v<Message>);
inline constexpr std::size_t kHeaderBytes = offsetof(Message, body);

// How many bytes of a message of this kind are sent.
constexpr std::size_t bytes_of(Kind kind) {
  const auto with = [](std::size_t body) { return kHeaderBytes + body; };
  switch (kind) {
    case Kind::kHello:
      return with(sizeof(Hello));
    case Kind::kAddGpu:
      return with(sizeof(AddGpu));
    case Kind::kWant:
      return with(sizeof(Want));
    case Kind::kGiveBack:
      return with(sizeof(GiveBack));
    case Kind::kUsage:
    case Kind::kStatus:
    case Kind::kStay:
      return with(0);
    case Kind::kRoom:
      return with(sizeof(Room));
    case Kind::kSession:
      return with(sizeof(Session));
    case Kind::kGang:
      return with(sizeof(Gang));
    case Kind::kReserve:
      return with(sizeof(Reserve));
    case Kind::kState:
      return with(sizeof(State));
    case Kind::kHandOver:
    case Kind::kExtent:
      return with(sizeof(Extent));
    case Kind::kAnnounce:
      return with(sizeof(Announce));
    case Kind::kIntroduce:
      return with(sizeof(Introduce));
    case Kind::kIntroduced:
      return with(sizeof(Introduced));
    case Kind::kOpened:
      return with(sizeof(Opened));
    case Kind::kAwaitRoom:
      return with(sizeof(AwaitRoom));
    case Kind::kTryAgain:
      return with(sizeof(TryAgain));
    case Kind::kChoose:
      return with(sizeof(Choose));
    case Kind::kChosen:
      return with(sizeof(Chosen));
    case Kind::kWelcome:
      return with(sizeof(Welcome));
    case Kind::kGpuAdded:
      return with(sizeof(GpuAdded));
    case Kind::kRefused:
      return with(sizeof(Refused));
    case Kind::kReserved:
      return with(sizeof(Reserved));
    case Kind::kTighten:
      return with(sizeof(Tighten));
    case Kind::kStatusGpu:
      return with(sizeof(GpuRow));
    case Kind::kStatusProgram:
      return with(sizeof(ProgramRow));
    case Kind::kStatusTask:
      return with(sizeof(TaskRow));
    case Kind::kStatusGang:
      return with(sizeof(GangRow));
    case Kind::kStatusSession:
      return with(sizeof(SessionRow));
    case Kind::kStatusAccount:
      return with(sizeof(AccountRow));
    case Kind::kStatusReservation:
      return with(sizeof(ReservationRow));
    case Kind::kStatusDaemon:
      return with(sizeof(DaemonRow));
  }
  return sizeof(Message);
}

}  // namespace rota::protocol
