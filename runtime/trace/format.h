// The trace file, as the traced process writes it and `rota trace` reads it.
//
//   FileHeader (as long as a chunk) | chunk 0 | chunk 1 | …            every chunk kChunkBytes long
//   chunk: ChunkHeader | record | record | … | zeros
//
// A chunk belongs to one thread at a time, so threads never contend on the fast path. Records lie one after another;
// the word that opens a record is stored last, so a record is either whole or (the word is zero) not there, whatever
// kills the process: the kernel keeps the pages of a mapped file. Space is reserved before it is mapped: a full disk
// ends the trace, never the program. All numbers are in the machine's byte order (FileHeader::byte_order tells), times
// are ticks of FileHeader::clock and turned into nanoseconds with the clock pairs that the file carries.
//
// Records are kept small, since what a call costs beyond its two time stamps is above all fresh memory: a call carries
// the low half of its ticks; the high half is recorded once (kTime) where a chunk begins, where another thread
// continues in it, and where it changes; and a result takes space only if it is not zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rota::trace {

inline constexpr char kMagic[8] = {'r', 'o', 't', 'a', 't', 'r', 'c', '\n'};
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kByteOrder = 0x01020304;
inline constexpr std::uint32_t kChunkBytes = 64 << 10;
inline constexpr std::uint32_t kHeaderBytes = kChunkBytes;  // so that chunks can be mapped whatever the page size
inline constexpr std::uint32_t kChunkMagic = 0x6b6e6863;    // "chnk"
inline constexpr std::uint64_t kMinimumBytes = std::uint64_t{kHeaderBytes} + kChunkBytes;  // a header and one chunk
inline constexpr const char* kFileSuffix = ".rotatrace";

enum class Clock : std::uint32_t {
  kMonotonic = 0,  // ticks are nanoseconds of CLOCK_MONOTONIC
  kCounter = 1,    // the invariant time stamp counter (x86-64) or the virtual counter (aarch64)
};

enum class State : std::uint32_t {
  kRunning = 0,     // or killed: nothing was written at the end
  kEnded = 1,       // the process ended by exit()
  kCapped = 2,      // ROTA_TRACE_MAX_BYTES was reached; the program went on untraced
  kOutOfSpace = 3,  // no more space could be reserved (FileHeader::stop_errno); the program went on untraced
};

// One moment on three clocks.
struct ClockPair {
  std::uint64_t ticks;
  std::uint64_t monotonic_ns;  // CLOCK_MONOTONIC: the same for all processes of a machine, so it orders the merge
  std::uint64_t realtime_ns;   // CLOCK_REALTIME, since 1970
};

struct FileHeader {
  char magic[8];  // stored last
  std::uint32_t version;
  std::uint32_t byte_order;
  std::uint32_t header_bytes;
  std::uint32_t chunk_bytes;
  std::uint64_t driver_schema;   // of generated/driver_names.h: what function numbers and payloads mean
  std::uint64_t runtime_schema;  // of generated/runtime_names.h
  std::uint32_t pid;
  std::uint32_t parent_pid;
  Clock clock;
  State state;
  std::uint32_t stop_errno;     // with State::kOutOfSpace
  std::uint32_t command_bytes;  // used bytes of `command`
  ClockPair start;              // when the file was made
  ClockPair calibrated;         // some hundred microseconds later
  std::uint64_t refreshes;      // refreshed[(refreshes - 1) & 1] is whole if refreshes > 0
  ClockPair refreshed[2];
  char command[3072];  // /proc/self/cmdline: arguments that each end in a zero byte, cut off where it is longer
};
static_assert(sizeof(FileHeader) <= kHeaderBytes);
static_assert(offsetof(FileHeader, start) == 64 && offsetof(FileHeader, command) == 168);

struct ChunkHeader {
  std::uint32_t magic;   // stored last
  std::uint32_t thread;  // of the first records; a kThread record says when another one continues
  std::uint64_t sequence;
  char thread_name[16];
};
static_assert(sizeof(ChunkHeader) == 32);

enum class RecordKind : std::uint8_t {
  kEnd = 0,     // the word is zero: no more records in this chunk
  kEntry = 1,   // a call begins; `value`: low half of the ticks; payload: its arguments
  kReturn = 2,  // it has returned with zero; `value`: low half of the ticks; payload: its out-parameters
  kThread = 3,  // `value` is the thread id of the records that follow; payload: its name, 16 bytes
  kTime = 4,    // `value` is the high half of the ticks of the records that follow; the payload means nothing
  kResult = 5,  // like kReturn; the payload begins with the result, 4 bytes
  kWait = 6,    // the thread's innermost call has waited for its turn on a GPU; payload: nanoseconds, 8 bytes
};

// The word that opens a record. After it: the payload, padded with anything to 8 bytes.
//   bits 0–11 length in units of 8 bytes, the word included; 12–15 kind; 16–30 function; 31 api; 32–63 value
struct RecordWord {
  static constexpr std::uint32_t kMaxBytes = 4095 * 8;
  static constexpr std::uint32_t kOverhead = 8;  // the word

  static constexpr std::uint64_t make(std::uint32_t bytes, RecordKind kind, std::uint32_t api, std::uint32_t function,
                                      std::uint32_t value) {
    return std::uint64_t{bytes / 8} | std::uint64_t{static_cast<std::uint8_t>(kind)} << 12 |
           std::uint64_t{function & 0x7fff} << 16 | std::uint64_t{api & 1} << 31 | std::uint64_t{value} << 32;
  }
  static constexpr std::uint32_t bytes(std::uint64_t word) { return static_cast<std::uint32_t>(word & 0xfff) * 8; }
  static constexpr RecordKind kind(std::uint64_t word) { return static_cast<RecordKind>((word >> 12) & 0xf); }
  static constexpr std::uint32_t function(std::uint64_t word) { return (word >> 16) & 0x7fff; }
  static constexpr std::uint32_t api(std::uint64_t word) { return (word >> 31) & 1; }
  static constexpr std::uint32_t value(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }
};

inline constexpr std::uint32_t kDriverApi = 0;
inline constexpr std::uint32_t kRuntimeApi = 1;

// A payload is the parameters' own values, packed in order without padding (entry only), then the captures: what
// strings, structs and out-parameters point to, each opened by a 16-bit length word.
//   0xffff: null pointer, or not captured because the call failed; else bits 0–14 bytes that follow, bit 15: cut off
struct CaptureWord {
  static constexpr std::uint16_t kAbsent = 0xffff;
  static constexpr std::uint16_t kCutOff = 0x8000;
  static constexpr std::uint16_t bytes(std::uint16_t word) { return word & 0x7fff; }
};

// What a capture takes at most. A record holds 16 parameters of kMaxCaptureBytes and three strings (no function takes
// more). Names of templated kernels run to thousands of characters, and only whole ones can be demangled.
inline constexpr std::uint32_t kMaxStringBytes = 4096;
inline constexpr std::uint32_t kMaxCaptureBytes = 1024;
static_assert(16 * (kMaxCaptureBytes + 2 + 8) + 3 * kMaxStringBytes < RecordWord::kMaxBytes);

}  // namespace rota::trace
