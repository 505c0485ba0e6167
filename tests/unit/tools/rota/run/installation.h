// An installation of rota's own for a test, with a stand-in for librota.so that does nothing.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {

class Installation {
 public:
  explicit Installation(bool with_daemon = true) {
    std::filesystem::create_directories(folder_ / "bin");
    std::filesystem::create_directories(folder_ / "lib/rota");
    std::filesystem::copy_file(ROTA, folder_ / "bin/rota");
    if (with_daemon) std::filesystem::copy_file(ROTAD, folder_ / "bin/rotad");
    std::filesystem::copy_file(EMPTY_PRELOAD, shim());
    chmod(folder_.path().c_str(), 0755);
  }
  // The daemon that a test started has to end before its folder is removed. It would end by itself; this only hastens
  // it.
  ~Installation() {
    const int descriptor = connect_to(socket());
    if (descriptor < 0) return;
    close(descriptor);
    const pid_t pid = static_cast<pid_t>(status(socket()).daemon.pid);
    kill(pid, SIGTERM);
    eventually([&] { return !std::filesystem::exists(socket()); });
  }

  std::string socket() const { return folder_ / "s/rotad.sock"; }
  std::string shim() const { return folder_ / "lib/rota/librota.so"; }
  const TemporaryFolder& folder() const { return folder_; }
  std::vector<std::string> environment() const {
    return {"ROTA_SOCKET=" + socket(), "ROTA_LOCK_DIRECTORY=" + (folder_ / "locks")};
  }
  Command command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), folder_ / "bin/rota");
    return {.arguments = std::move(arguments), .environment = environment()};
  }
  Outcome rota(std::vector<std::string> arguments) const { return run(command(std::move(arguments))); }

 private:
  TemporaryFolder folder_;
};

}  // namespace rota::test
