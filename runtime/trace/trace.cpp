// See trace.h.
#include "runtime/trace/trace.h"

#include <cstdlib>
#include <string>

#include "generated/trace_schema.h"
#include "runtime/trace/interface.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/thread.h"
#include "scheduler/base/byte_size.h"

namespace rota::trace {

bool start(void (*log)(const char* line)) {
  // Either the driver's side or librota-cudart.so may come first; the first one starts tracing, and the environment is
  // read once.
  static const bool started = [log] {
    const char* const directory = std::getenv("ROTA_TRACE");
    if (directory == nullptr || directory[0] == '\0') return false;
    WriterOptions options;
    options.directory = directory;
    options.driver_schema = kDriverSchema;
    options.runtime_schema = kRuntimeSchema;
    options.log = log;
    if (const char* const text = std::getenv("ROTA_TRACE_MAX_BYTES"); text != nullptr) {
      const auto bytes = parse_bytes(text);
      if (bytes) options.max_bytes = *bytes;
      if (!bytes && log != nullptr)
        log((std::string("ROTA_TRACE_MAX_BYTES is '") + text +
             "': use bytes with an optional K, M, G or T, as in 64M; 1G is used")
                .c_str());
    }
    return start_recording(options);
  }();
  return started;
}

}  // namespace rota::trace
