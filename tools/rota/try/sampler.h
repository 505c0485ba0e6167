// What copies of a program use while they run: asked of rotad and of NVML every few milliseconds, on a thread of its
// own, since either may take its time.
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

#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/server/nvml.h"
#include "tools/rota/status/request.h"

namespace rota::attempt {

struct Gpu {
  protocol::Uuid uuid{};
  std::string name;
};

// What rotad said last of one process.
struct Use {
  double waited = 0;  // seconds that it has waited for its turns
  double held = 0;    // that it has had a GPU
};

// What was seen from start() to stop().
struct Seen {
  // Of this process's descendants under rota; nothing: rotad saw none of them, or cannot be asked.
  std::optional<double> waited;            // seconds that they have waited for their turns, all together
  std::optional<std::uint64_t> allocated;  // the most that they had, contexts and modules included; bytes
  // The most that was in use on the GPUs beyond what was there before, in all; nothing: it cannot be measured.
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

  // Why NVML tells nothing; empty: it does. One line.
  const std::string& nvml_problem() const { return nvml_problem_; }
  // Whether rotad names processes as they are named here; else it cannot be told whose they are.
  bool rotad_is_here() const { return rotad_is_here_; }

  // The GPUs of which NVML is asked. Not while it samples.
  void watch(const std::vector<Gpu>& gpus) { gpus_ = gpus; }
  // Before anything that is to be measured is started: what is in use there.
  void look_before();
  // Once it has been started, and once it has ended.
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
  std::uint64_t there_before_ = 0;  // by whom NVML does not name, if that is much
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
