// The core's side of librota-cudart.so's tracing; see thread.h.
#pragma once

#include <cstdint>

#include "runtime/trace/thread.h"

namespace rota::trace {

// "4096", "64K", "1G" (powers of 1024) → bytes. False: not such a text, or zero.
bool parse_bytes(const char* text, std::uint64_t& bytes);

}  // namespace rota::trace

// Exported by librota-core.so. May be called before any driver call, from librota-cudart.so.
extern "C" __attribute__((visibility("default"))) const rota::trace::Interface* rota_core_trace(std::uint32_t version);
