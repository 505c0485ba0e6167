// The state of a traced thread, and the interface between a library with tracers and the writer.
//
// Both librota-core.so (driver calls) and librota-cudart.so (runtime calls) contain tracers, and both write through the
// same Thread, so that the records of a runtime call and of the driver calls it makes lie in one sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/trace/clock.h"
#include "runtime/trace/format.h"

namespace rota::trace {

struct Thread {
  std::byte* cursor;    // where the next record goes
  std::byte* end;       // of this thread's current stretch of the file; cursor == end == nullptr before the first and
                        // after the last record
  std::uint64_t epoch;  // the ticks whose high half the stretch's last kTime record holds
  std::uint64_t refresh_at;  // ticks from which the file's calibration should be refreshed
  Clock clock;
};

// The thread's state; never null, the same for the whole life of the thread: `const` lets a tracer ask once per call.
[[gnu::const]] Thread& this_thread();
// Gets a new stretch that holds at least `bytes`; returns the address for them, or null while nothing can be recorded.
std::byte* reserve_slowly(Thread& thread, std::uint32_t bytes);
// Writes the time on all clocks into the file. Called from time to time.
void refresh(Thread& thread, std::uint64_t ticks);

// How librota-cudart.so reaches the three functions above in the core. Exported by librota-core.so as rota_core_trace.
struct Interface {
  std::uint32_t version;  // kInterfaceVersion
  std::uint32_t bytes;    // sizeof(Interface)
  std::uint64_t runtime_schema;
  Thread* (*thread)();
  std::byte* (*reserve_slowly)(Thread*, std::uint32_t);
  void (*refresh)(Thread*, std::uint64_t);
};
inline constexpr std::uint32_t kInterfaceVersion = 2;
// Starts tracing if ROTA_TRACE asks for it and it has not begun yet. Null: tracing is off, or another version.
using InterfaceFunction = const Interface*(std::uint32_t version);

}  // namespace rota::trace
