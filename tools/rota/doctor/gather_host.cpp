// The machine: memory, limits, kernel, device files, MPS, container.
#include <dirent.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "scheduler/base/descriptor.h"
#include "tools/rota/doctor/gather.h"
#include "tools/rota/run/executable.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace rota::doctor {
namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number behind `key` in lines of "key number" or "key: number".
std::uint64_t field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t digits = line.find_first_of("0123456789", key.size());
    if (digits != std::string::npos && line.find_first_not_of(": \t", key.size()) == digits) {
      return number(std::string_view(line).substr(digits)).value_or(0);
    }
  }
  return 0;
}

// The limit of this process's cgroup, or of one above it: all of them apply.
void gather_cgroups(HostFacts& host) {
  std::istringstream lines(content("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" (version 2) or "7:cpu,memory:/path" (version 1)
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("memory") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // In a container the path may be the host's, which is not there: then the root is the container's own.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      std::string folder = root;
      if (path != "/") folder += path;
      read_cgroup(content(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")),
                  content(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes")),
                  content(folder + "/memory.stat"), host);
      if (path.find('/') == std::string::npos || path.empty()) break;
    }
  }
}

std::uint64_t limit_of(int resource, std::uint64_t* hard = nullptr) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kUnlimited;
  if (hard != nullptr) *hard = limit.rlim_max == RLIM_INFINITY ? kUnlimited : limit.rlim_max;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

bool has_membarrier() {
  const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  return commands >= 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
}

bool has_pidfd() {
  return static_cast<bool>(Descriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))));
}

bool has_sealed_memory() {
  const Descriptor memory(memfd_create("rota-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  return memory && fcntl(memory.get(), F_ADD_SEALS, kSeals) == 0;
}

std::vector<DeviceFile> gather_devices() {
  std::vector<DeviceFile> files;
  const auto add = [&files](const std::string& path) {
    files.push_back({path, access(path.c_str(), R_OK | W_OK) == 0});
  };
  if (DIR* folder = opendir("/dev")) {
    while (const dirent* entry = readdir(folder)) {
      if (entry->d_type != DT_DIR && strncmp(entry->d_name, "nvidia", 6) == 0)
        add(std::string("/dev/") + entry->d_name);
    }
    closedir(folder);
  }
  if (access("/dev/dxg", F_OK) == 0) add("/dev/dxg");
  std::sort(files.begin(), files.end(), [](const auto& left, const auto& right) { return left.path < right.path; });
  return files;
}

std::string container() {
  if (getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  if (access("/.dockerenv", F_OK) == 0) return "docker";
  if (access("/run/.containerenv", F_OK) == 0) return "podman";
  // systemd-nspawn, lxc and podman set it for the first process and what it starts.
  const char* kind = getenv("container");
  return kind != nullptr ? kind : "";
}

// Whether something listens at a Unix socket. Connects with a type that no stream server has, so that no connection is
// made: a live socket returns "wrong type", a dead one "refused".
bool listens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Descriptor asking(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!asking) return false;
  return connect(asking.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EPROTOTYPE;
}

MpsFacts gather_mps() {
  MpsFacts mps;
  const char* chosen = getenv("CUDA_MPS_PIPE_DIRECTORY");
  mps.directory = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp/nvidia-mps";
  const auto pid = number(content(mps.directory + "/nvidia-cuda-mps-control.pid"));
  if (pid && *pid > 0) mps.pid = static_cast<long>(*pid);
  // The daemon may live in another PID namespace, where only its socket can be seen.
  const bool process =
      mps.pid > 0 && content("/proc/" + std::to_string(mps.pid) + "/comm").rfind("nvidia-cuda-mps", 0) == 0;
  mps.alive = process || listens(mps.directory + "/control");
  return mps;
}

}  // namespace

void read_cgroup(const std::string& limit, const std::string& usage, const std::string& stat, HostFacts& host) {
  const auto most = number(limit);
  if (!most || (host.memory != 0 && *most >= host.memory)) return;
  const std::uint64_t used = number(usage).value_or(0);
  const std::uint64_t cache = field(stat, "inactive_file") + field(stat, "active_file");
  const std::uint64_t counted = used - std::min(used, cache);
  // The cgroup with the least memory left decides.
  if (host.cgroup_limit != 0 && host.cgroup_limit - host.cgroup_used <= *most - std::min(*most, counted)) return;
  host.cgroup_limit = *most;
  host.cgroup_used = std::min(*most, counted);
}

std::string kernel_module_version(const std::string& text) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue …", or "… Open Kernel Module for x86_64  580.…"
  std::istringstream words(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

HostFacts gather_host() {
  HostFacts host;
  utsname system{};
  if (uname(&system) == 0) host.kernel = system.release;
  host.container = container();
  host.kernel_module = kernel_module_version(content("/proc/driver/nvidia/version"));
  host.devices = gather_devices();
  const std::string memory = content("/proc/meminfo");
  host.memory = field(memory, "MemTotal") << 10;
  host.memory_free = field(memory, "MemAvailable") << 10;
  gather_cgroups(host);
  host.open_files = limit_of(RLIMIT_NOFILE, &host.open_files_max);
  host.locked_memory = limit_of(RLIMIT_MEMLOCK);
  host.address_space = limit_of(RLIMIT_AS);
  host.membarrier = has_membarrier();
  host.proc = access("/proc/self/stat", R_OK) == 0;
  host.pidfd = has_pidfd();
  host.sealed_memory = has_sealed_memory();
  host.checkpoint_program = tool::inspect_command("cuda-checkpoint").path;
  host.mps = gather_mps();
  return host;
}

}  // namespace rota::doctor
