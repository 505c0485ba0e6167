// The core's side of librota-cudart.so's tracing; see thread.h.
#pragma once

#include <cstdint>

#include "runtime/trace/thread.h"

// Exported by librota-core.so. May be called before any driver call, from librota-cudart.so.
extern "C" __attribute__((visibility("default"))) const rota::trace::Interface* rota_core_trace(std::uint32_t version);
