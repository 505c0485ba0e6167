// What `rota top` shows of one moment, and of what has changed since the moment before.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/status/request.h"

namespace rota::top {

struct Gpu {
  unsigned number = 0;  // nvidia-smi's
  std::string name{};
  std::optional<unsigned> busy_percent{};  // by NVML
  std::uint64_t used_bytes = 0;            // by the driver where that is known, otherwise what programs have
  std::uint64_t total_bytes = 0;
  unsigned programs = 0;
  unsigned holders = 0;
  unsigned waiters = 0;
  std::string note{};  // how it is shared and why, or who else has it
};

enum class Doing { kIdle, kWaits, kHolds };

// A program on one GPU.
struct Row {
  unsigned gpu = 0;  // the GPU's number
  int pid = 0;       // 0: hidden
  std::string user{};
  std::string session{};
  std::string command{};
  Doing doing = Doing::kIdle;
  std::uint64_t since_ns = 0;                     // for how long it has held or waited
  std::optional<double> held_part{};              // of the time since the moment before, 0 to 1
  std::optional<double> busy_part{};              // of its own time, in which the GPU works for it
  std::uint64_t held_ns = 0;                      // in all
  std::uint64_t waited_ns = 0;                    // in all
  std::uint64_t allocated_bytes = 0;              // on this GPU
  std::optional<std::uint64_t> out_bytes{};       // of that, in the host's memory; nothing: the driver alone knows
  std::optional<std::uint64_t> resident_bytes{};  // of that, on the GPU
  std::uint64_t moved_bytes = 0;                  // off the program's GPUs and back, in all
  std::optional<double> moved_rate{};             // bytes a second since the moment before
  std::string detail{};                           // a clause about what is special; may be empty
};

struct View {
  std::string daemon{};                // a line about rotad
  std::string problem{};               // why there is no rotad's answer; may have several lines
  std::vector<std::string> notices{};  // lines
  std::vector<Gpu> gpus{};             // in nvidia-smi's order
  std::vector<Row> rows{};
};

// What was found when rotad was asked: its answer, or why there is none.
struct Finding {
  std::optional<tool::Status> status{};
  std::vector<tool::MachineGpu> machine{};  // by NVML, as also in the status
  std::string problem{};
};

// Turns each finding into a view, with rates since the one before.
class Viewer {
 public:
  View view(const Finding& finding, std::chrono::steady_clock::time_point now);

 private:
  struct Before {
    std::uint64_t held_ns = 0;
    std::uint64_t moved_bytes = 0;
  };
  // By client and GPU, of the same rotad.
  std::map<std::pair<std::uint32_t, std::uint32_t>, Before> before_;
  std::uint64_t rotad_ = 0;  // its pid
  std::uint64_t grants_ = 0;
  std::chrono::steady_clock::time_point when_{};
};

}  // namespace rota::top
