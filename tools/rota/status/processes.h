// How many processes use GPUs, whether or not they run under rota: `rota status` does not say that nothing runs while
// something does.
#pragma once

#include <optional>

namespace rota::tool {

// By NVML, of all GPUs together. Nothing: NVML is not there, or does not answer within two seconds.
std::optional<unsigned> processes_on_gpus();

}  // namespace rota::tool
