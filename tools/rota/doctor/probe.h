// The children of `rota doctor`: hidden subcommands that do what may crash, hang or print.
#pragma once

#include <string>

namespace rota::doctor {

// Loads the driver at `driver` and queries what it has, without creating a context; `nvml` is libnvidia-ml.so.1, or
// empty. Returns the exit code.
int probe_driver(const std::string& driver, const std::string& nvml, int report);

// Runs under rota's preload: is `preload` found as "libcuda.so.1", and do the libraries in `directory` load?
int try_preload(const std::string& preload, const std::string& directory, int report);

}  // namespace rota::doctor
