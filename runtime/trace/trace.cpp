// See trace.h.
#include "runtime/trace/trace.h"

#include <cstdlib>
#include <string>

#include "generated/trace_schema.h"
#include "runtime/trace/interface.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/thread.h"

namespace rota::trace {

bool parse_bytes(const char* text, std::uint64_t& bytes) {
  char* end = nullptr;
  if (text[0] < '0' || text[0] > '9') return false;
  const unsigned long long number = std::strtoull(text, &end, 10);
  int shift = 0;
  switch (*end) {
    case 'k':
    case 'K':
      shift = 10;
      ++end;
      break;
    case 'm':
    case 'M':
      shift = 20;
      ++end;
      break;
    case 'g':
    case 'G':
      shift = 30;
      ++end;
      break;
    case 't':
    case 'T':
      shift = 40;
      ++end;
      break;
    default:
      break;
  }
  if (*end != '\0' || number == 0 || number > (~0ULL >> shift)) return false;
  bytes = std::uint64_t{number} << shift;
  return true;
}

bool start(void (*log)(const char* line)) {
  // The driver's side and librota-cudart.so may both come first; whoever does starts it, and the environment is read
  // once.
  static const bool started = [log] {
    const char* const directory = std::getenv("ROTA_TRACE");
    if (directory == nullptr || directory[0] == '\0') return false;
    WriterOptions options;
    options.directory = directory;
    options.driver_schema = kDriverSchema;
    options.runtime_schema = kRuntimeSchema;
    options.log = log;
    if (const char* const text = std::getenv("ROTA_TRACE_MAX_BYTES");
        text != nullptr && !parse_bytes(text, options.max_bytes) && log != nullptr) {
      log((std::string("ROTA_TRACE_MAX_BYTES is '") + text +
           "': a number of bytes with an optional K, M, G or T is accepted; 1G is used")
              .c_str());
    }
    return start_recording(options);
  }();
  return started;
}

}  // namespace rota::trace
