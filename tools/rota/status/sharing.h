// How programs share a GPU, and why, as `rota status` shows it: for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/rota/status/request.h"

namespace rota::tool {

// A line without newline; empty if there is nothing to say because fewer than two programs use the GPU.
std::string sharing_text(const protocol::StatusGpu& gpu);
nlohmann::json sharing_json(const protocol::StatusGpu& gpu);

// A client's second line, without newline; empty if there is nothing to say. `use` may be null.
std::string use_text(const protocol::StatusUse* use, const protocol::StatusGpu& gpu);
// For the line about a client that swaps: what of its memory stays on the GPU, and whether it is passed over for want
// of room. `use` may be null.
std::string staying_text(const protocol::StatusUse* use, bool holds);
// For a client on all its GPUs; null if rotad reports nothing about it.
nlohmann::json use_json(const Status& status, std::uint32_t client);

// The row about a client's use of a GPU; null if there is none, as from a rotad older than these rows.
const protocol::StatusUse* use_of(const Status& status, std::uint32_t client, std::uint32_t gpu);

}  // namespace rota::tool
