// Answers the processes of a rig that ask whether their test may begin its GPU work, and which GPUs it sees
// (runtime/client/admission.h): a thread with a socket of its own around Admissions.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "tools/rota/ci/admissions.h"
#include "tools/rota/ci/gpus.h"
#include "tools/rota/try/output_folder.h"

namespace rota::ci {

// What the broker asks, on its own thread.
struct Knowledge {
  struct Test {
    std::string name;  // empty: not known
    std::string tree;  // the same for all processes of a test
    std::optional<Needs> needs;
    bool added = false;  // they are what the test adds to what its process has
  };
  std::function<Test(pid_t)> test_of;
  // Called with a GPU's UUID and size, which a process reports before its first context.
  std::function<void(const std::string&, std::uint64_t)> gpu_of;
  // What all tests together may have of each known GPU.
  std::function<Load()> room;
  // What each tree's processes have on the GPUs now; and the part that cannot be evicted, according to room()'s last
  // result.
  struct Used {
    Load bytes;
    Load staying;
  };
  std::function<std::map<std::string, Used>()> used;
};

// Where tests are spread over GPUs.
struct Spread {
  std::vector<VisibleGpu> gpus;  // that the command sees
  std::size_t each = 0;          // for a test; 0: tests are not spread
};

class Broker {
 public:
  static Result<std::unique_ptr<Broker>> start(Knowledge knowledge, Spread spread);
  // Lets all tests continue.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // For ROTA_ADMISSION.
  const std::string& socket() const { return socket_; }
  // Ends the thread. Returns the tests (the last one of each process) that began although their memory did not fit
  // together with the others'.
  std::vector<std::string> finish();

 private:
  Broker() = default;
  void run();
  void accept_one();
  void hear(int who);
  void refresh();
  void give_gpus(int who, const Knowledge::Test& test, const std::string& inherited);
  void decide();

  struct Connection {
    Descriptor descriptor;
    pid_t process;
    std::vector<std::string> gpus;  // that it sees, once it has said so
    std::size_t first = 0;          // of them: that of its first context
  };

  Knowledge knowledge_;
  Spread spread_;
  Load room_;
  // A socket's path is short: the report's folder may be anywhere.
  attempt::OutputFolder folder_{"rota-ci", {"/tmp", "/dev/shm"}};
  std::string socket_;
  Descriptor listening_;
  Descriptor stop_;                  // an eventfd
  bool out_of_descriptors_ = false;  // no descriptor was left for a connection
  std::map<int, Connection> connections_;
  Admissions admissions_;
  std::map<std::string, std::string> names_;  // by tree
  std::thread thread_;
};

}  // namespace rota::ci
