// What `rota top` shows: the answer to one poll of rotad, and what has changed since the previous poll.
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
  unsigned number = 0;  // as nvidia-smi numbers it
  std::string name{};
  std::optional<unsigned> busy_percent{};  // by NVML
  std::uint64_t used_bytes = 0;            // as the driver says if that is known, otherwise what rota's programs have
  std::uint64_t total_bytes = 0;
  unsigned programs = 0;
  unsigned holders = 0;
  unsigned waiters = 0;
  std::string note{};  // how it is shared and why, what programs without rota use, or who else has it
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
  std::uint64_t since_ns = 0;                     // how long it has been holding the GPU, or waiting for it
  std::optional<double> held_part{};              // of the time since the previous poll, the part that it held the GPU
  std::optional<double> busy_part{};              // of its time without waits, the part that the GPU works for it
  std::uint64_t held_ns = 0;                      // since it began
  std::uint64_t waited_ns = 0;                    // since it began
  std::uint64_t allocated_bytes = 0;              // on this GPU
  std::optional<std::uint64_t> out_bytes{};       // of that, in the host's memory; nothing: only the driver knows
  std::optional<std::uint64_t> resident_bytes{};  // of that, on the GPU
  std::uint64_t moved_bytes = 0;                  // copied off all GPUs of the program and back, since it began
  std::optional<double> moved_rate{};             // the same in bytes per second, since the previous poll
  std::string detail{};                           // what else is known about it, for one line; may be empty
};

struct View {
  std::string daemon{};                // a line about rotad
  std::string problem{};               // why rotad has not answered, or what else is wrong; may be several lines
  std::vector<std::string> notices{};  // lines
  std::vector<Gpu> gpus{};             // in nvidia-smi's order
  std::vector<Row> rows{};
};

// The result of one poll: rotad's answer, or why there is none.
struct Finding {
  std::optional<tool::Status> status{};
  std::vector<tool::MachineGpu> machine{};  // GPUs as NVML shows them; the same as in the status
  std::string problem{};                    // as in View
};

// Turns each finding into a view, with rates since the previous finding.
class Viewer {
 public:
  View view(const Finding& finding, std::chrono::steady_clock::time_point now);

 private:
  struct Before {
    std::uint64_t held_ns = 0;
    std::uint64_t moved_bytes = 0;
  };
  // By client and GPU. Compared only while the same rotad answers.
  std::map<std::pair<std::uint32_t, std::uint32_t>, Before> before_;
  std::uint64_t rotad_ = 0;  // its pid
  std::uint64_t grants_ = 0;
  std::chrono::steady_clock::time_point when_{};
};

}  // namespace rota::top
