// The protocol between rotad and its clients: messages over a SOCK_SEQPACKET Unix socket, and two shared pages per
// client. Plain data only: this header is compiled into other people's processes (the shim) and into rotad.
//
// A client connects, says `hello`, and gets `welcome` with two descriptors (SCM_RIGHTS, in this order): its lease page,
// which rotad writes and the client can only map for reading, and its usage page, which the client writes. Both are
// memfds of kPageBytes that rotad created and sealed against resizing. The client then names the GPUs that it touches
// (`add_gpu`), asks for them (`want`), and gives them back (`give_back`) once another client waits. A grant is
// announced only in the lease page: the client's threads wait on its futex word, so a hand-over costs no message to the
// next holder.
//
// Versions. A program lives longer than a rotad, and a container brings its own rota, so each side serves a range of
// versions and both speak the newest that they share:
//   - What is sent before that is settled (hello, and what needs no hello) has the form of the oldest version that its
//     sender speaks; hello also says the newest. rotad's welcome carries the chosen version in its header, and so does
//     every message after it.
//   - In version 1 every message has exactly 256 bytes, and a kind that is not known ends the connection.
//   - From version 2 on a message has at most kMaxMessageBytes. What it lacks is zero, what it has beyond the known
//     fields is ignored, and so is a message of a kind that is not known. A field is never moved and never gets another
//     meaning: a later version adds fields behind the last one, or kinds.
//   - From version 3 on a client asks for room before it takes it.
//   - From version 4 on a client reserves what it is going to have, whether it holds a GPU or not.
//   - From version 5 on rotad asks clients that do not hold a GPU to move their memory away from it.
//   - From version 6 on it passes such memory on from one client to another.
//   - From version 7 on a client also reserves what of its memory stays on a GPU and what has to be there at once.
//   - From version 8 on it says in its usage page how it uses its turns, where rotad wants to know; an older one runs
//     beside others whenever its memory fits.
//
// Room (version 3). LeasePage::promised_bytes says how much the client may have on each GPU of its grant. A client that
// is about to have more sends kRoom first, with its bytes in all, and takes them once the promise covers them: so the
// memory of two holders never collides. rotad raises promises in the order in which clients asked, and lets other
// holders give back where it takes that. A promise never falls while its grant lasts, and ends with it: what the client
// has then, and what it waits for, it says in its usage page, and the next grant promises that. A client that does not
// hold a GPU asks for nothing, and does not let its work run under a grant that promises less than it has by then.
// The next holder would push out Unified Memory a little at a time. So rotad says how much of a holder's memory is in
// the way (LeasePage::clear_bytes), and the holder may move that much to the host before it gives the lease back. The
// promise is about bytes on the GPU, however they come and go.
//
// Swap memory (version 5) stays on the GPU until the client itself removes it: the driver does not push it out, and
// refuses allocations of the next holder. So the client says how much of it is there (UsagePage::resident_bytes), even
// while it does not hold the GPU, and what the driver has refused although it does (short_bytes). Nothing moves when a
// lease goes back. When those who hold a GPU lack room, rotad asks clients that do not hold it for exactly what is
// missing, by the same clear_bytes; a client that holds a GPU and swaps there is not asked. A client that is asked
// moves its memory once it is proven that none of its work runs, and writes resident_bytes as the memory leaves; one
// that cannot move it says so in fixed_bytes. If a client's memory does not move for two seconds, rotad asks others
// instead.
//
// Handing memory over (version 6). Swap memory may go to the next holder instead of the driver, which would clear it
// first: LeasePage::hand_over_gpus says on which GPUs. For each piece that has been copied to the host the client then
// sends kHandOver with a descriptor of its physical memory (SCM_RIGHTS; CUDA's
// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), and keeps nothing of it; resident_bytes falls as if the driver had it
// back. rotad forwards it at once, as kExtent, to a client that lacks memory there, or closes it; it keeps none. A
// client that does not need an extent closes it. The giver could keep a mapping and read what the next holder writes
// there, so pieces only pass between clients of one trust domain, which rotad derives from the kernel's credentials of
// its peers: the same user in the same user and pid namespaces, or what its settings say.
//
// Limits (version 4). rotad enforces the limits of sessions, users, cgroups and the host's memory, and hears of every
// allocation before it is made: a client has no more on a GPU than its latest kReserved says, and sends kReserve before
// it exceeds that. rotad answers at once or, if limits are in the way, when the others have said (kTighten, kState)
// what they do not need. It waits for no GPU work. A client says kState for each GPU right after kGpuAdded, with what
// it has by then. All answers are messages; rotad changes the lease page's event word after it has sent one.
//
// Swap memory has to be there at once, next to all contexts and all memory that cannot leave the GPU. From version 7 on
// a client therefore reserves four amounts, none of which it exceeds: in all, what can leave, what cannot
// (fixed_bytes), and what its swap memory takes in the pieces that it moves in (swapped_bytes). rotad refuses any
// request that would leave some client without room for its swap memory. For an older client everything that cannot
// move counts as fixed, and nothing as swapped.
//
// Every field that comes from the other side is checked before it is used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rota::protocol {

inline constexpr std::uint32_t kMagic = 0x41544f52;  // "ROTA"
inline constexpr std::uint16_t kOldestVersion = 1;
inline constexpr std::uint16_t kVersion = 8;       // the newest
inline constexpr std::uint16_t kRoomVersion = 3;   // from this one on clients ask for room
inline constexpr std::uint16_t kLimitVersion = 4;  // from this one on clients reserve what they are going to have
inline constexpr std::uint16_t kSwapVersion = 5;   // from this one on rotad also asks those without the lease for room
inline constexpr std::uint16_t kHandOverVersion = 6;  // from this one on memory goes from client to client
inline constexpr std::uint16_t kFitVersion = 7;       // from this one on clients reserve what has to fit a GPU together
inline constexpr std::uint16_t kActivityVersion = 8;  // from this one on clients say how they use their turns
inline constexpr std::size_t kMaxMessageBytes = 1024;
// GPUs that one rotad manages at most: a set of GPUs is one 64-bit mask, bit i being the GPU with index i.
inline constexpr std::size_t kMaxGpus = 64;
// More memory than any GPU has.
inline constexpr std::uint64_t kMaxGpuBytes = std::uint64_t{1} << 48;
inline constexpr std::size_t kNameLength = 64;     // bytes, NUL included
inline constexpr std::size_t kTextLength = 192;    // bytes, NUL included
inline constexpr std::size_t kVersionLength = 24;  // bytes, NUL included
inline constexpr std::size_t kSessionLength = 64;  // bytes, NUL included
// No limit, of an amount in bytes.
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

// A GPU's or MIG instance's UUID as cuDeviceGetUuid_v2 gives it.
struct Uuid {
  std::uint8_t bytes[16];
  friend bool operator==(const Uuid&, const Uuid&) = default;
};

// Below 100: client to rotad. From 100 on: rotad to client.
enum class Kind : std::uint16_t {
  // client to rotad
  kHello = 1,      // Hello; answered by kWelcome or kRefused
  kAddGpu = 2,     // AddGpu, once more to be measured again; answered by kGpuAdded or kRefused
  kWant = 3,       // Want: queue this client for the set; a later want replaces the set and keeps the place
  kGiveBack = 4,   // GiveBack: the named grant has drained; ignored unless it is the one in force
  kUsage = 5,      // no body: the usage page changed by enough to matter (rotad also looks by itself)
  kStatus = 6,     // StatusRequest, no hello needed; answered by kStatusGpu and kStatusClient rows, then kStatusEnd
  kStay = 7,       // no body, no hello needed: rotad does not end as idle while the sending process lives
  kRoom = 8,       // Room: this client's bytes on a GPU that it holds; answered in LeasePage::promised_bytes
  kSession = 9,    // Session: this client belongs to it; before its first GPU
  kReserve = 10,   // Reserve: what this client is going to have on a GPU; answered by kReserved
  kState = 11,     // State: what this client has on a GPU and will not exceed before it has reserved more
  kHandOver = 12,  // Extent, with one descriptor: memory for whoever lacks it
  // rotad to client
  kWelcome = 101,
  kGpuAdded = 102,
  kRefused = 103,  // in answer to kAddGpu it concerns that GPU alone; in answer to anything else rotad then hangs up
  kStatusGpu = 104,
  kStatusClient = 105,
  kStatusEnd = 106,
  kReserved = 107,
  kTighten = 108,        // Tighten: answered by kState for each GPU
  kStatusAccount = 109,  // comes between clients and end, to askers that read version 4
  kExtent = 110,         // Extent, with one descriptor: somebody's memory, for this client's use
  kStatusUse = 111,      // one for each client and GPU, behind kStatusClient's, to askers that read version 8
};

enum class Mode : std::uint32_t {
  kAutomatic = 0,   // together when their memory fits, in turns when it does not
  kExclusive = 1,   // always in turns
  kConcurrent = 2,  // always together
};

// How a client's plain memory on one GPU is served, and why: what it puts into its usage page.
enum class MemoryMode : std::uint8_t {
  kUnknown = 0,          // not set: a program older than this field
  kUnified = 1,          // Unified Memory, which makes room for others
  kNativeChosen = 2,     // the driver's own, as the user said (ROTA_MEMORY=native)
  kNativeNoManaged = 3,  // the driver's own, since this GPU has no managed memory (some vGPUs)
  kNativeNoPaging = 4,   // since it cannot page it by itself: no concurrent managed access (WSL, some vGPUs and MIG)
  kNativeShared = 5,     // since the program hands its memory to other processes
  kNativeRefused = 6,    // from now on, since a function that the program calls refuses Unified Memory
  kSwap = 7,             // plain device memory, which the client moves to the host and back itself
  // Unified Memory although the user asked for swap memory, which has not been tested there: with MPS, on MIG
  // instances, in confidential virtual machines, where the GPU uses the host's page tables (Grace). Status has four
  // bits for all.
  kUnifiedMps = 8,
  kUnifiedMig = 9,
  kUnifiedConfidential = 10,
  kUnifiedCoherent = 11,
  // The driver's own, since a tool checks every access (compute-sanitizer, Nsight Compute) or, where the user asked for
  // swap memory, a debugger was there from the start.
  kNativeWatched = 12,
};
inline constexpr std::uint8_t kLastMemoryMode = 12;

// The kinds of GPUs on which swap memory has not been tested; null if this is no mode of such a GPU.
constexpr const char* untested_where(MemoryMode mode) {
  switch (mode) {
    case MemoryMode::kUnifiedMps:
      return "under MPS";
    case MemoryMode::kUnifiedMig:
      return "on MIG instances";
    case MemoryMode::kUnifiedConfidential:
      return "in confidential virtual machines";
    case MemoryMode::kUnifiedCoherent:
      return "where the GPU uses the host's page tables (Grace)";
    default:
      return nullptr;
  }
}

constexpr bool is_unified(MemoryMode mode) {
  return mode == MemoryMode::kUnified || untested_where(mode) != nullptr;
}
// Whether memory leaves the GPU when others need the room.
constexpr bool can_leave(MemoryMode mode) {
  return is_unified(mode) || mode == MemoryMode::kSwap;
}

// Why programs share a GPU as they do, as status says it.
enum class SharingReason : std::uint32_t {
  kUnknown = 0,       // a rotad older than this field
  kMode = 1,          // because of exclusive or concurrent mode
  kMemory = 2,        // automatic mode: their memory does not fit together
  kFits = 3,          // their memory fits, and with a fixed quantum nothing else is considered
  kAlone = 4,         // fewer than two have made calls lately
  kMeasuring = 5,     // it is being measured
  kTrial = 6,         // it gave more than the other way
  kFewContend = 7,    // fewer than two keep making calls: the others come in bursts or rest
  kNoCollision = 8,   // no two of them have kept the GPU busy at the same time: turns would gain nothing
  kMemoryLately = 9,  // automatic mode: their memory did not fit together a moment ago
};

struct Hello {
  std::uint32_t version1_pid;    // sent by version 1, never read: rotad asks the kernel who its peer is
  std::uint16_t newest_version;  // that the client speaks; 0 (version 1): the one in the header
  std::uint16_t padding;
  char name[kNameLength];  // the program's name, NUL-terminated
};

struct AddGpu {
  Uuid uuid;
  std::uint64_t total_bytes;    // the GPU's memory
  std::uint64_t context_bytes;  // measured cost of this client's context; 0 if unknown: rotad assumes one
  char name[kNameLength];       // e.g. "NVIDIA H200"
};

struct GpuAdded {
  Uuid uuid;
  std::uint32_t index;  // bit in every GPU mask of this daemon, and place in UsagePage::device_bytes
};

struct Want {
  std::uint64_t gpus;  // mask of GPUs that were added; all at once or not at all; 0 withdraws the want
  // Not 0: this client's work already runs on these GPUs, by a grant of a rotad that died. Such a want is granted at
  // once while the new rotad is young (kReclaimSeconds); later it is a want like any other.
  std::uint32_t running;
  std::uint32_t padding;
  // Not 0, from version 8 on: a signal handler has run in a waiting thread, and the program can react only once its
  // call returns. At most once a second, less often where hand-overs take long, such a want goes before all others, for
  // a short turn. Older rotads do not read it.
  std::uint32_t urgent;
  // Not 0, from version 8 on, where LeasePage::watch has kWatchAlone: the client measures, and needs what it holds to
  // itself until it sends a want without this. LeasePage::alone_until_ns is the answer. Older rotads do not read it.
  std::uint32_t alone;
};
inline constexpr int kReclaimSeconds = 10;
// A turn of which so many times as much has passed as is left ends well at a pause of its holder.
inline constexpr int kLastPart = 4;

struct GiveBack {
  std::uint32_t grant;  // LeasePage::grant as the client saw it
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
};

struct Reserve {
  std::uint32_t gpu;
  std::uint32_t number;         // comes back with the answer
  std::uint64_t device_bytes;   // in all
  std::uint64_t movable_bytes;  // the part of it that can leave the GPU
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

// What the client may have there from now on, whether the request was granted or not.
struct Reserved {
  std::uint32_t gpu;
  std::uint32_t number;
  std::uint64_t device_bytes;
  std::uint64_t movable_bytes;
  std::uint32_t granted;   // 0: refused
  char text[kTextLength];  // why it was refused: whose limit, how much
  std::uint32_t padding;
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

// Older askers leave it zero.
struct StatusRequest {
  std::uint32_t newest_version;  // that the asker reads
};

struct StatusGpu {
  Uuid uuid;
  std::uint32_t index;
  Mode mode;
  std::uint64_t total_bytes;
  std::uint64_t used_bytes;  // sum over clients
  std::uint32_t clients;
  std::uint32_t holders;
  std::uint32_t waiters;
  std::uint32_t version1_space;  // 0; keeps the name where version 1 reads it
  char name[kNameLength];
  // By the driver's count, for all processes; 0 if rotad cannot measure it (measured is 0).
  std::uint64_t driver_used_bytes;
  std::uint64_t driver_free_bytes;
  std::uint32_t measured;  // not 0: the two above hold
  std::uint32_t padding;
  std::uint64_t handed_over_bytes;  // passed on from client to client since rotad started
  // The part of the used memory that belongs to no process that rotad knows: measured or, if that is not possible,
  // estimated from the driver's refusals.
  std::uint64_t outside_bytes;
  // How programs whose memory fits together share it: scheduler::Candidate, and whether that is being measured.
  std::uint32_t candidate;
  std::uint32_t looking;
  std::uint32_t active;  // clients that have made calls lately
  std::uint32_t more_padding;
  std::uint64_t turn_ns;    // how long a turn is while others wait
  std::uint64_t switch_ns;  // from a grant until its holder runs, lately; 0: not known
  SharingReason reason;     // why they share it so
  // The throughput of that way in its last trial, or of the other way while turns are in force, in thousandths of what
  // turns gave. 0: nothing has been tried with these programs.
  std::uint32_t trial_permille;
};

// What has been moved off all GPUs of a client and back since it began.
struct Moves {
  std::uint64_t out_bytes;     // copied to the host
  std::uint64_t out_ns;        // of moves that copied any, including examining and unmapping
  std::uint64_t in_bytes;      // copied back
  std::uint64_t in_ns;         // waiting for room included
  std::uint64_t spared_bytes;  // left without a copy, since they had not changed since the last one, or were all zeros
};

// Of a client whose user the asker is not to know; its pid is 0 then.
inline constexpr std::uint32_t kHiddenUser = UINT32_MAX;
inline constexpr const char* kHiddenProgram = "another user's program";
struct StatusClient {
  std::uint32_t client;
  std::int32_t pid;
  std::uint32_t uid;
  std::uint64_t gpus;          // touched
  std::uint64_t held_gpus;     // mask
  std::uint64_t wanted_gpus;   // mask, waiting
  std::uint64_t device_bytes;  // sum over GPUs
  std::uint64_t since_ns;      // how long it has held, or waited
  char name[kNameLength];
  std::uint64_t promised_bytes;  // sum over the GPUs that it holds
  std::uint64_t asked_bytes;     // the same, where it waits for room: in all; 0: it does not
  std::uint32_t overrun;         // not 0: it did not give its last grant back in time; others run beside it
  // MemoryMode by GPU index, four bits each, the lower half of a byte first: see memory_mode().
  std::uint8_t memory_modes[kMaxGpus / 2];
  std::uint64_t resident_bytes;  // of clients that swap: what lies on the GPUs now, summed over them; 0 from any other
  // Beside its allocations: contexts, modules, heaps; sum over GPUs. Measured or assumed, see below.
  std::uint64_t context_bytes;
  std::uint64_t driver_bytes;   // that the driver counts for the process; sum over the GPUs of the mask
  std::uint64_t measured_gpus;  // mask: there both are measured; elsewhere rotad believes the client and assumes
  Moves moves;                  // of a client that swaps; 0 from any other, and from an older one
};

// How the client's memory on a GPU is served; unknown for what a newer rotad may say. `gpu` is below kMaxGpus.
constexpr MemoryMode memory_mode(const StatusClient& client, std::size_t gpu) {
  const unsigned mode = client.memory_modes[gpu / 2] >> gpu % 2 * 4 & 0xF;
  return mode <= kLastMemoryMode ? static_cast<MemoryMode>(mode) : MemoryMode::kUnknown;
}
constexpr void set_memory_mode(StatusClient& client, std::size_t gpu, MemoryMode mode) {
  const unsigned shift = gpu % 2 * 4;
  std::uint8_t& both = client.memory_modes[gpu / 2];
  both = static_cast<std::uint8_t>((both & ~(0xFu << shift)) | static_cast<unsigned>(mode) << shift);
}

// How a client uses a GPU: what it said of itself when it took turns to be measured, and how long it has waited.
struct StatusUse {
  std::uint32_t client;
  std::uint32_t gpu;
  std::uint32_t known;            // kKnows..., or-ed: which of the two that follow say something
  std::uint32_t busy_permille;    // u: the part of its own time, in which it does not wait, that the GPU works for it
  std::uint64_t calls_per_1000s;  // r: its calls that submit work, in a thousand seconds of its own time
  std::uint32_t light;            // not 0: it runs at any time beside those that take turns
  std::uint32_t padding;
  // Since it began: how long it has held any GPU, and how long it has waited for some and held none.
  std::uint64_t held_ns;
  std::uint64_t waited_ns;
  // Of its memory there: what cannot leave the GPU, and the part of that which will be able to. 0 from an older rotad.
  std::uint64_t fixed_bytes;
  std::uint64_t fixed_for_now_bytes;
  // It waits and is passed over, since this much of its memory would not be on the GPU if it had its turn, or it holds
  // the GPU and cannot run for want of that. 0: neither. And how much of that would fit if memory of others that is
  // fixed only for now had left; 0 from an older rotad.
  std::uint64_t lacks_bytes;
  std::uint64_t lacks_for_now_bytes;
};
inline constexpr std::uint32_t kKnowsBusy = 1;
inline constexpr std::uint32_t kKnowsCalls = 2;

// Whose memory is limited together.
struct StatusAccount {
  std::uint32_t clients;
  std::uint32_t padding;
  std::uint64_t device_limit;  // on each GPU; kUnlimited: none
  std::uint64_t device_used;   // reserved, on the GPU with most of it
  std::uint64_t host_limit;
  std::uint64_t host_used;  // what may have to lie in the host's memory
  char name[kTextLength];
  // What its clients that swap have in the host's memory, and the part of it that they could give back. 0 from an older
  // rotad.
  std::uint64_t host_swap_bytes;
  std::uint64_t host_spare_bytes;
};

struct StatusEnd {
  std::uint64_t daemon_pid;
  std::uint64_t quantum_ns;  // 0: automatic
  std::uint64_t grants;      // since the daemon started
  Mode mode;
  std::uint32_t version1_space;       // 0; keeps the next field where version 1 reads it
  char rota_version[kVersionLength];  // e.g. "0.1.0"; empty from a rotad older than this field
};

struct Message {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kOldestVersion;  // who has settled on another one puts it here
  Kind kind{};
  union Body {
    Hello hello;
    AddGpu add_gpu;
    Want want;
    GiveBack give_back;
    Room room;
    Session session;
    Reserve reserve;
    State state;
    Extent extent;
    Reserved reserved;
    Tighten tighten;
    StatusAccount status_account;
    Welcome welcome;
    GpuAdded gpu_added;
    Refused refused;
    StatusRequest status_request;
    StatusGpu status_gpu;
    StatusClient status_client;
    StatusUse status_use;
    StatusEnd status_end;
    std::uint8_t bytes[248];
  } body{.bytes = {}};
};
static_assert(sizeof(Message) == 256 && std::is_trivially_copyable_v<Message>);  // 256: version 1's size
inline constexpr std::size_t kHeaderBytes = offsetof(Message, body);
static_assert(offsetof(StatusGpu, name) == 56 && offsetof(StatusClient, name) == 56 &&
              offsetof(StatusClient, gpus) == 16 && offsetof(StatusEnd, rota_version) == 32 &&
              offsetof(StatusClient, promised_bytes) == 120 && offsetof(StatusClient, memory_modes) == 140 &&
              offsetof(StatusClient, resident_bytes) == 176 && offsetof(StatusClient, context_bytes) == 184 &&
              offsetof(StatusClient, moves) == 208 && offsetof(StatusGpu, driver_used_bytes) == 120 &&
              offsetof(StatusGpu, handed_over_bytes) == 144 && offsetof(StatusGpu, outside_bytes) == 152 &&
              offsetof(StatusGpu, candidate) == 160 && offsetof(StatusGpu, reason) == 192 &&
              offsetof(Room, bytes) == 8 && offsetof(Hello, name) == 8 && offsetof(Want, urgent) == 16 &&
              offsetof(Want, alone) == 20);

}  // namespace rota::protocol
