// How a rule's process runs the rule, how a child process runs its CHILD(role), and how both report their result.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/simgpu/conformance/runner.h"

namespace conformance {
namespace {

// Reports the result; if several processes fail, the first counts. No destructor runs: the context may be broken.
[[noreturn]] void finish(int status, const std::string& line) {
  release_all_blockers();
  if (const char* path = std::getenv(kResultVariable); path != nullptr) {
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0 && !line.empty()) {
      std::string text = line + '\n';
      if (write(file, text.data(), text.size()) < 0) std::perror(path);
    }
  } else if (!line.empty()) {
    std::printf("%s\n", line.c_str());
  }
  std::fflush(nullptr);
  _exit(status);
}

// The Linux kernel kills this process when the one that started it ends.
void end_with_parent() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

}  // namespace

std::vector<Rule>& rules() {
  static std::vector<Rule> list;
  return list;
}
std::vector<Role>& roles() {
  static std::vector<Role> list;
  return list;
}
Registration::Registration(const Rule& rule) {
  rules().push_back(rule);
}
Registration::Registration(const Role& role) {
  roles().push_back(role);
}

std::string program_folder() {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  std::string text(path, length > 0 ? static_cast<size_t>(length) : 0);
  return text.substr(0, text.rfind('/') + 1);
}

void fail(const char* file, int line, const std::string& text) {
  std::string place(file);
  place.erase(0, place.rfind('/') + 1);
  finish(kFailed, "FAIL " + place + (line > 0 ? ":" + std::to_string(line) : "") + ": " + text);
}

void skip(const std::string& why) {
  finish(kSkipped, "skip " + why);
}

void run_rule(const Rule& rule) {
  end_with_parent();
  load_driver();
  rule.run();
  finish(0, "ok");
}

void run_child(const Role& role, const std::string& argument, int descriptor) {
  end_with_parent();
  load_driver();
  Channel parent(descriptor);
  role.run(parent, argument);
  finish(0, "");
}

}  // namespace conformance
