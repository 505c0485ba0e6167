// What copies of a program use while they run: rotad and NVML are queried every few milliseconds, on a separate thread,
// since either may be slow.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/server/nvml.h"
#include "tools/rota/status/request.h"

namespace rota::attempt {

struct Gpu {
  Uuid uuid{};
  std::string name;
};

// What rotad last said about one process.
struct Use {
  double waited = 0;  // seconds that it has waited for its turns
  double held = 0;    // that it has had a GPU
};

// What was seen from start() to stop().
struct Seen {
  // Of this process's descendants under rota; nothing: rotad saw none of them, or cannot be asked.
  std::optional<double> waited;            // seconds that they have waited for their turns, all together
  std::optional<std::uint64_t> allocated;  // the most that they had, contexts and modules included; bytes
  // The most that was in use on all GPUs beyond what was there before; nothing: it cannot be measured.
  std::optional<std::uint64_t> in_use;
  std::vector<Gpu> gpus;  // that they used
  // Who else used the GPUs: "python (pid 12)".
  std::vector<std::string> others;
  std::map<pid_t, Use> uses;  // of descendants that used a GPU under rota
  std::uint64_t grants = 0;   // turns that rotad gave, to whomever
  // How programs shared the GPU, as `rota status` said it last while most of them used it; empty: fewer than two did.
  std::string sharing;
};

class Sampler {
 public:
  Sampler();
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Why NVML reports nothing; empty: it does. One line.
  const std::string& nvml_problem() const { return nvml_problem_; }
  // Whether rotad uses the same pids as this process; otherwise its clients cannot be identified.
  bool rotad_is_here() const { return rotad_is_here_; }

  // The GPUs for which NVML is queried. Must not be called while it samples.
  void watch(const std::vector<Gpu>& gpus) { gpus_ = gpus; }
  // Records what is in use before anything to be measured is started.
  void look_before();
  // Called when the copies have been started, and when they have ended.
  void start();
  Seen stop();

 private:
  void run();
  void ask_rotad();
  void ask_nvml();
  void saw_other(pid_t pid, const std::string& name);

  Descriptor rotad_;
  bool rotad_is_here_ = true;
  std::unique_ptr<server::Nvml> nvml_;
  std::string nvml_problem_;
  std::vector<Gpu> gpus_;
  std::uint64_t used_before_ = 0;
  std::uint64_t there_before_ = 0;  // by processes that NVML does not name, if that is much
  bool used_known_ = false;

  // The thread's, while there is one.
  Seen seen_;
  std::map<std::uint32_t, std::uint64_t> waited_ns_;  // by client
  std::map<pid_t, std::string> others_;
  bool lost_rotad_ = false;
  std::optional<std::uint64_t> grants_before_;
  std::uint32_t most_active_ = 0;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
};

}  // namespace rota::attempt
