// Copies of simgpu's libcuda.so.1 that pose as the driver of one CUDA version: they export what a driver of that
// version exports (generated/driver_releases.h) and call themselves so.
#pragma once

#include <string>

namespace rota::sim {

// "12.4" is 12040; 0 for what is no version that a driver may pose as (posed.h).
int parse_driver_version(const std::string& text);

// Writes the copy, making its folder where it is missing; the file is complete as soon as it is there. Empty, or one
// line that says why it could not be done. `library` is simgpu's libcuda.so.1 as built.
std::string write_posed_driver(const std::string& library, int version, const std::string& output);

}  // namespace rota::sim
