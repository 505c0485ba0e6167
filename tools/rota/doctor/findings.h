// From facts to findings: pure, no I/O.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/rota/doctor/facts.h"

namespace rota::doctor {

enum class Level {
  kOk,
  kNote,     // worth knowing; rota works
  kWarning,  // rota works, but not as one would expect
  kProblem,  // programs do not run under rota, or not on the GPU, until this is changed
};

const char* level_name(Level level);

struct Finding {
  std::string id;  // stable across releases: scripts look for it
  Level level = Level::kOk;
  std::string text;                                  // one line
  std::string remedy;                                // one line; empty only where all is well
  nlohmann::json values = nlohmann::json::object();  // the same for programs
};

using Findings = std::vector<Finding>;

Findings judge(const Facts& facts);

// The parts of judge(), one file each.
void judge_driver(const Facts& facts, Findings& findings);      // found, loads, version, exports, cuInit
void judge_init_error(const Facts& facts, Findings& findings);  // cuInit failed, or there is no GPU: why
void judge_gpus(const Facts& facts, Findings& findings);        // each GPU, MIG, MPS, what hides GPUs
void judge_preload(const Facts& facts, Findings& findings);     // shim files, other preloads, the trial, the command
void judge_daemon(const Facts& facts, Findings& findings);
void judge_settings(const Facts& facts, Findings& findings);  // ROTA_* variables
void judge_host(const Facts& facts, Findings& findings);      // memory, limits, kernel

// The known ROTA_* variable that `name` was probably meant to be; empty if none is near.
std::string nearest_variable(std::string_view name);

// "13.0" for 13000.
std::string version_text(int version);
// "139.8 GiB"
std::string size_text(std::uint64_t bytes);
// "1 GPU", "2 GPUs"
std::string counted(std::size_t number, std::string_view what);

}  // namespace rota::doctor
