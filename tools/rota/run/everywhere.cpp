#include "tools/rota/run/everywhere.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "runtime/preload/cuda/clean_environment.h"
#include "scheduler/base/descriptor.h"
#include "tools/rota/run/preload.h"

extern char** environ;  // NOLINT

namespace rota::tool {

namespace {

constexpr const char* kPreloadFile = "/etc/ld.so.preload";

std::string failed(const char* what) {
  return fmt::format("processes with a clean environment run without rota: cannot {}: {}", what, std::strerror(errno));
}

bool write_text(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return static_cast<bool>(file);
}

// A user who is not root needs a new user namespace, in which it keeps its id.
bool unshare_mounts() {
  if (unshare(CLONE_NEWNS) == 0) return true;
  const unsigned user = geteuid();
  const unsigned group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", fmt::format("{} {} 1\n", user, user)) &&
         write_text("/proc/self/gid_map", fmt::format("{} {} 1\n", group, group));
}

// LD_PRELOAD may be separated by colons, the file may not. What the machine preloads anyway stays.
std::string preload_text() {
  std::ifstream before(kPreloadFile, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(before), {});
  if (!text.empty() && text.back() != '\n') text += '\n';
  const char* const list = getenv("LD_PRELOAD");
  std::string ours = list != nullptr ? list : "";
  std::ranges::replace(ours, ':', '\n');
  return text + ours + "\n";
}

std::string session_text() {
  std::string text;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view line = *variable;
    if (line.starts_with("ROTA_") && line.find('\n') == std::string_view::npos) text += std::string(line) + "\n";
  }
  return text;
}

// Empty, or one line why not.
std::string mount_over_etc(const std::string& preload, const std::string& session) {
  if (!unshare_mounts()) return failed("make a mount namespace (a container needs CAP_SYS_ADMIN)");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("make mounts private");
  // /etc with two files on top, in memory. Once /etc refers to them, the folder is not needed any more.
  char folder[] = "/tmp/rota-etc-XXXXXX";
  if (mkdtemp(folder) == nullptr) return failed("make a folder in /tmp");
  const std::string top = folder;
  const bool mounted = mount("rota", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") == 0;
  std::string problem;
  if (!mounted) {
    problem = failed("mount a tmpfs");
  } else if (mkdir((top + "/upper").c_str(), 0755) != 0 || mkdir((top + "/work").c_str(), 0755) != 0 ||
             !write_text(top + "/upper" + std::string(kPreloadFile).substr(std::strlen("/etc")), preload) ||
             !write_text(top + "/upper" + std::string(ROTA_SESSION_FILE).substr(std::strlen("/etc")), session)) {
    problem = failed("write the session's files");
  } else if (mount("rota", "/etc", "overlay", 0,
                   fmt::format("lowerdir=/etc,upperdir={0}/upper,workdir={0}/work", top).c_str()) != 0) {
    problem = failed("mount over /etc");
  }
  if (mounted) umount2(folder, MNT_DETACH);
  rmdir(folder);
  return problem;
}

// Runs `work` in a child with its own namespaces, and returns what it returned there.
template <typename Work>
std::string tried_in_child(const Work& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed("make a pipe");
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) return failed("start a process");
  if (child == 0) {
    const std::string problem = work();
    const ssize_t told = write(writing.get(), problem.data(), problem.size());
    _exit(told == static_cast<ssize_t>(problem.size()) ? 0 : 1);
  }
  writing = {};
  std::string problem;
  char part[256];
  for (ssize_t got = 1; got > 0;) {
    got = read(reading.get(), part, sizeof part);
    if (got > 0) problem.append(part, static_cast<std::size_t>(got));
  }
  int status = 0;
  const bool well = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!well && problem.empty()) problem = "processes with a clean environment run without rota: a process failed";
  return problem;
}

}  // namespace

std::string preload_everywhere() {
  // A variable that is removed may also name the folder of the driver.
  const DriverPlace driver = find_driver();
  if (driver.search == DriverSearch::kFound && driver.place == kPlaceLibraryPath) {
    setenv(kPlaceVariable, driver.path.c_str(), 1);
  }
  const std::string preload = preload_text();
  const std::string session = session_text();
  const auto work = [&] { return mount_over_etc(preload, session); };
  // Tried in a child first: a user namespace whose ids cannot be mapped could not be left again.
  if (std::string problem = tried_in_child(work); !problem.empty()) return problem;
  return work();
}

}  // namespace rota::tool
