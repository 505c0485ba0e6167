// `rota sim`: starts a program on simulated GPUs.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

namespace rota::tool {

// "h200x2", the value of --gpu: a card and how many of them.
struct SimulatedGpus {
  std::string card;  // empty: not given
  int count = 1;     // 1 to 8
};
std::optional<SimulatedGpus> parse_simulated_gpus(const std::string& text);

void register_sim(CLI::App& app);

}  // namespace rota::tool
