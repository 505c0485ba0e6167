// rotad's answer, with what else this machine shows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/rota/status/request.h"

namespace rota::tool {

struct Looked {
  std::optional<Status> status;     // nothing: `messages` says why there is none
  std::string socket;               // where rotad was found, or last searched for
  std::string messages;             // lines for people, each with its newline; may be empty if there is a status
  std::vector<MachineGpu> machine;  // all GPUs, in nvidia-smi's order; empty: NVML does not say
};

// Asks rotad, other rotads, and NVML. Takes up to 10 s where they do not answer.
Looked look_at_rotad();

// Lines about processes that NVML lists although no rotad knows of any; empty: there is none, or NVML does not say.
std::string others_text(std::optional<unsigned> processes);

}  // namespace rota::tool
