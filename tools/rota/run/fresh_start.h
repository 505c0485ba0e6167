// What a process that outlives its starter must not inherit from it. A rotad that `rota run` starts serves all of its
// user's programs: the first of them must not decide which files stay open, how many descriptors there may be, on which
// CPUs rotad runs, or by which mark a build system finds and kills it.
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

namespace rota::tool {

// The part of an environment ("NAME=value" each) that a rotad needs: HOME and XDG_* (where its settings are), the
// ROTA_* that say where it listens and locks and which GPUs are simulated, and of LD_LIBRARY_PATH the folders in which
// the NVML lies that rotad loads (the simulated GPU's, and the driver's in some containers). Everything else is about
// the first program: ROTA_TRACE and limits, as well as what CI systems set to find what a build has left behind.
std::vector<std::string> daemon_environment(char* const* inherited);

// A rotad with fewer descriptors cannot serve everybody: it needs three for each program, and a hundred for itself. An
// estimate.
inline constexpr rlim_t kEnoughDescriptors = 1024;

// Closes all descriptors from `first` on, also those above the present limit, and where the kernel or a sandbox knows
// no close_range.
void close_descriptors_from(int first);

// Settings of its starter that this process keeps because only root can change them.
struct Kept {
  std::string limits;  // resource limits so low that rotad cannot serve everybody: "20 open files"; empty: none
  std::string pace;    // settings that make it slow, or the first to be killed; empty: none
};

// Gives this process the limits, scheduling, CPUs, signals, session, umask and working directory of a process that
// nobody in particular started.
Kept start_afresh();

}  // namespace rota::tool
