// Examines this machine for `rota doctor`. Nothing here loads a driver: children do that (probe.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/doctor/facts.h"

namespace rota::doctor {

struct Options {
  std::chrono::milliseconds limit{30000};  // for each child
  std::string command;                     // the program that the question is about; empty: none
};

Facts gather(const Options& options);

// The parts of gather().
DriverFacts gather_driver();
PreloadFacts gather_preload();  // without the trial; creates the copy fitted to the driver, as `rota run` does
// What a child finds that loads this driver, and this NVML unless that is empty, without rota in front of it.
ProbeFacts gather_probe(const std::string& driver, const std::string& nvml, std::chrono::milliseconds limit,
                        std::vector<std::pair<std::string, std::optional<std::string>>> environment);
// `gpus`: UUIDs that the driver has named.
DaemonFacts gather_daemon(const std::vector<std::string>& gpus);
HostFacts gather_host();

// One cgroup's memory, in the file formats of both versions: `limit` "max" or a number at or above every machine's RAM
// means none. `stat` is memory.stat, whose page cache does not count as used.
void read_cgroup(const std::string& limit, const std::string& usage, const std::string& stat, HostFacts& host);

// "580.159.04" out of /proc/driver/nvidia/version; empty if it is not in there.
std::string kernel_module_version(const std::string& text);

// The libraries in LD_PRELOAD ("a:b c") or /etc/ld.so.preload (also with # comments).
std::vector<std::string> preload_entries(const std::string& text);

}  // namespace rota::doctor
