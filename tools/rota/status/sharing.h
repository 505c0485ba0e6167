// How programs share a GPU, and why, as `rota status` shows it: for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/rota/status/request.h"

namespace rota::tool {

// A line without newline; empty if there is nothing to say because fewer than two programs use the GPU.
std::string sharing_text(const protocol::GpuRow& gpu);
nlohmann::json sharing_json(const protocol::GpuRow& gpu);

// A program's second line, without newline; empty if there is nothing to say. `task`: on this GPU; may be null.
std::string use_text(const protocol::TaskRow* task, const protocol::GpuRow& gpu);
// What a program waits for there besides its turn.
std::vector<std::string> waits_of(const Status& status, const protocol::TaskRow& task);
// For the line about a program that swaps: how much of its memory cannot be evicted, and whether it is passed over
// because its memory does not fit. `task` may be null.
std::string staying_text(const protocol::TaskRow* task, bool holds);
// For a program on all its GPUs; null if it uses none.
nlohmann::json use_json(const Status& status, const protocol::ProgramRow& program);

}  // namespace rota::tool
