// Tracing of this process, started once when the core is attached.
#pragma once

namespace rota::trace {

// Environment: ROTA_TRACE=<folder> turns tracing on; one file per process is created there.
//              ROTA_TRACE_MAX_BYTES=<bytes, suffixes K/M/G/T> limits each file, 1G unless set.
// True: tracing is on, and the tracers record. `log` gets complete lines about failures, without newline; it may be
// called from any thread. Later calls only say whether tracing is on.
bool start(void (*log)(const char* line));

}  // namespace rota::trace
