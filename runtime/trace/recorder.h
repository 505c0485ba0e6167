// The threads that write to this process's trace file: gives each thread its stretches of the file, follows forks, ends
// the file.
#pragma once

#include <chrono>

#include "runtime/trace/writer.h"

namespace rota::trace {

// Begins recording into a file created from `options`. Once per process; the recorder lives as long as the process,
// since threads may still call CUDA while static objects are destroyed. False: no file (logged).
bool start_recording(const WriterOptions& options);
bool recording();
// The calling thread has waited this long for its turn, inside the call that it is recording.
void note_wait(std::chrono::nanoseconds waited);
// Where the trace goes; empty before the first record of a forked child.
std::string recording_path();

}  // namespace rota::trace
