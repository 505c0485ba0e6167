// Programs without rota, wherever this one was started.
#pragma once

#include <string>

namespace rota::attempt {

// An LD_PRELOAD without the libraries of any installation of rota.
std::string without_rota(const std::string& preloads);

// Removes from this process's environment what makes programs run under rota. Variables of simulated GPUs and other
// preloads stay.
void leave_rota();

// If this process itself runs under rota, restarts it without. Returns if it does not, or if that is impossible.
void start_again_without_rota();

}  // namespace rota::attempt
