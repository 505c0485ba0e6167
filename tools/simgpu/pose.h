// Copies of simgpu's libcuda.so.1 that pose as the driver of one CUDA version: they export what a driver of that
// version exports (generated/driver_releases.h) and report that version.
#pragma once

#include <string>

namespace rota::sim {

// "12.4" is 12040; 0 if a driver cannot pose as this version (posed.h).
int parse_driver_version(const std::string& text);

// Writes the copy and creates its folder if missing; the file appears only once it is complete. Returns an empty
// string, or one line saying what failed. `library` is simgpu's libcuda.so.1 as built.
std::string write_posed_driver(const std::string& library, int version, const std::string& output);

}  // namespace rota::sim
