// What NVML reports about a GPU's memory: how much is in use, and by which process. Only the real library is queried,
// never rota's own, which programs have loaded before it.
//
// Every call may take milliseconds, and seconds on a GPU with problems: never call these on the server's thread
// (meter.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "scheduler/protocol/protocol.h"

namespace rota::server {

// One GPU, or MIG instance, at one moment; all in bytes.
struct GpuReading {
  Uuid uuid{};
  std::uint64_t total = 0;
  std::uint64_t free = 0;
  std::uint64_t used = 0;  // by any process, including Unified Memory that is there
  // By pid as this process sees it: contexts, modules, heaps and the driver's own memory, also of graphics programs (a
  // display server), without Unified Memory. Nothing where the driver does not say whose memory it is, or names
  // processes by the pids of another namespace.
  std::optional<std::map<pid_t, std::uint64_t>> processes;
  // The driver does not say how much some process in the list has.
  bool some_unknown = false;
  std::optional<std::uint32_t> number;  // nvidia-smi's; of a MIG instance, its GPU's
};

class Nvml {
 public:
  // Loads the library and initialises it. The error says what is missing.
  static Result<std::unique_ptr<Nvml>> open(const std::string& library = "libnvidia-ml.so.1");
  // Shuts NVML down, which otherwise keeps the GPUs awake. The library stays loaded.
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // All GPUs of the machine, by UUID; not their MIG instances. Empty: there is none, or NVML does not say.
  std::vector<Uuid> gpus() const;
  // Nothing if NVML does not know the GPU, or does not say how much of its memory is in use.
  std::optional<GpuReading> read(const Uuid& uuid) const;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  void read_processes(void* device, GpuReading& reading) const;

  const std::unique_ptr<Functions> functions_;
};

}  // namespace rota::server
