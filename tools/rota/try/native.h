// Programs without rota, wherever this one was started.
#pragma once

#include <string>

namespace rota::attempt {

// An LD_PRELOAD without the libraries of any rota.
std::string without_rota(const std::string& preloads);

// Takes out of this process's environment what makes programs run under rota. What describes simulated GPUs stays, and
// so does the preload of anybody else.
void leave_rota();

// Where this process itself runs under rota: starts it again without. Returns where it does not, or cannot.
void start_again_without_rota();

}  // namespace rota::attempt
